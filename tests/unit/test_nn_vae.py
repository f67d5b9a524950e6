"""Causal convolutions, the AudioVAE's shapes, and the streaming state."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import nn

from voxnative.config import VAEConfig
from voxnative.nn.audio_vae import AudioVAE
from voxnative.nn.causal_conv import CausalConv1d, CausalLayer, CausalTransposeConv1d
from voxnative.nn.vae_stream import decode_chunk, init_stream, layers_with_tail

SMALL = VAEConfig(
    encoder_dim=4,
    encoder_rates=(2, 5),
    latent_dim=6,
    decoder_dim=16,
    decoder_rates=(5, 2, 1),
    sample_rate_hz=16_000,
    out_sample_rate_hz=16_000,
)


@pytest.fixture(params=[True, False], ids=["depthwise", "dense"])
def vae(request: pytest.FixtureRequest) -> AudioVAE:
    torch.manual_seed(0)
    return AudioVAE(dataclasses.replace(SMALL, depthwise=request.param)).requires_grad_(False)


@pytest.mark.parametrize(
    "layer",
    [
        CausalConv1d(3, 5, 7),
        CausalConv1d(3, 5, 7, dilation=9),
        CausalConv1d(3, 3, 7, dilation=3, groups=3),
        CausalConv1d(3, 5, 1),
        CausalConv1d(3, 5, 10, stride=5),
        CausalConv1d(3, 5, 4, stride=2),
        CausalConv1d(3, 5, 10, stride=5, n_late=1),
        CausalTransposeConv1d(3, 5, 1),
        CausalTransposeConv1d(3, 5, 4),
        CausalTransposeConv1d(3, 5, 5),
    ],
    ids=str,
)
def test_causal_layer(layer: CausalLayer) -> None:
    layer.requires_grad_(False)
    stride = layer.stride[0]
    up = isinstance(layer, CausalTransposeConv1d)
    x = torch.randn(2, 3, 40)
    whole = layer(x)
    assert whole.shape == (2, 5 if layer.groups == 1 else 3, 40 * stride if up else 40 // stride)

    # The past does not hear the future.
    nudged = x.clone()
    nudged[..., 20:] += 1.0
    n_same = 20 * stride if up else 20 // stride
    assert torch.equal(layer(nudged)[..., :n_same], whole[..., :n_same])
    assert not torch.equal(layer(nudged), whole)

    # Chunks with their tails are the whole; a tail may be longer than a chunk.
    tail, outputs = x.new_zeros(2, 3, layer.n_tail), []
    for chunk in x.split(10, dim=-1):
        context = torch.cat((tail, chunk), dim=-1)
        outputs.append(layer.advance(context))
        tail = context[..., context.shape[-1] - layer.n_tail :]
    assert torch.allclose(torch.cat(outputs, -1), whole, atol=1e-6)


def test_hops_and_range(vae: AudioVAE) -> None:
    latents = torch.randn(2, 7, SMALL.latent_dim)
    wave = vae.decode(latents)
    assert wave.shape == (2, 7 * SMALL.decoder_hop)
    assert wave.abs().max() <= 1.0
    for n_samples, n_frames in ((10, 1), (11, 2), (70, 7)):
        assert vae.encode(torch.randn(2, n_samples)).shape == (2, n_frames, SMALL.latent_dim)


def test_padding_is_silence_behind_the_signal(vae: AudioVAE) -> None:
    wave = torch.randn(1, 37)
    padded = torch.cat((wave, torch.zeros(1, 3)), dim=1)
    assert torch.equal(vae.encode(wave), vae.encode(padded))


def test_output_rate_selects_the_bin() -> None:
    """Boundaries belong to the bin below, as `torch.bucketize` has it."""
    boundaries = torch.tensor(SMALL.sr_bin_boundaries)
    for rate in (8_000, 20_000, 20_001, 30_000, 40_000, 48_000):
        vae = AudioVAE(dataclasses.replace(SMALL, out_sample_rate_hz=rate))
        expected = torch.bucketize(torch.tensor(rate), boundaries).item()
        indices = {condition.bin_index for condition in vae.decoder.sr_cond_model.values()}
        assert indices == {expected}


def test_only_the_selected_bin_matters(vae: AudioVAE) -> None:
    latents = torch.randn(1, 3, SMALL.latent_dim)
    before = vae.decode(latents)
    first: nn.Module = next(iter(vae.decoder.sr_cond_model.values()))
    first.scale_embed.weight[1:] += 1.0
    assert torch.equal(vae.decode(latents), before)
    first.scale_embed.weight[0] += 1.0
    assert not torch.equal(vae.decode(latents), before)


def test_without_rate_bins_there_is_no_condition() -> None:
    vae = AudioVAE(dataclasses.replace(SMALL, sr_bin_boundaries=None))
    assert not [name for name in vae.state_dict() if "sr_" in name]


def test_fresh_state_is_zero_and_sized_by_the_layers(vae: AudioVAE) -> None:
    tails = init_stream(vae, n_slots=3)
    layers = layers_with_tail(vae)
    assert len(tails) == len(layers) > 10
    for tail, layer in zip(tails, layers, strict=True):
        assert tail.shape == (3, layer.in_channels, layer.n_tail)
        assert not tail.any()


def test_layers_with_tail_are_listed_in_the_order_they_run(vae: AudioVAE) -> None:
    ran: list[CausalLayer] = []

    def run(layer: CausalLayer, x: torch.Tensor) -> torch.Tensor:
        ran.append(layer)
        return layer(x)

    vae.decoder(torch.randn(1, SMALL.latent_dim, 2), run)
    assert all(one is other for one, other in zip(ran, layers_with_tail(vae), strict=True))


def test_stream_mutates_neither_module_nor_arguments(vae: AudioVAE) -> None:
    latents = torch.randn(2, 4, SMALL.latent_dim)
    _, tails = decode_chunk(vae, latents, init_stream(vae, 2))
    kept = [tail.clone() for tail in tails]
    attributes = {name: set(vars(module)) for name, module in vae.named_modules()}
    weights = {name: tensor.clone() for name, tensor in vae.state_dict().items()}
    first, _ = decode_chunk(vae, latents, tails)
    again, _ = decode_chunk(vae, latents, tails)
    assert torch.equal(first, again)
    assert all(torch.equal(one, other) for one, other in zip(kept, tails, strict=True))
    assert attributes == {name: set(vars(module)) for name, module in vae.named_modules()}
    assert all(torch.equal(weights[name], tensor) for name, tensor in vae.state_dict().items())


def test_every_split_of_a_stream_gives_the_whole(vae: AudioVAE) -> None:
    latents = torch.randn(1, 5, SMALL.latent_dim)
    whole = vae.decode(latents)
    for n_cuts in range(5):
        for cuts in itertools.combinations(range(1, 5), n_cuts):
            tails, waves = init_stream(vae, 1), []
            for chunk in latents.tensor_split(cuts, dim=1):
                wave, tails = decode_chunk(vae, chunk, tails)
                waves.append(wave)
            assert torch.allclose(torch.cat(waves, 1), whole, atol=1e-6), cuts


def test_chunk_compiles_without_graph_breaks(vae: AudioVAE) -> None:
    latents, tails = torch.randn(2, 4, SMALL.latent_dim), init_stream(vae, 2)
    compiled = torch.compile(decode_chunk, backend="eager", fullgraph=True)
    wave, new_tails = compiled(vae, latents, tails)
    expected, expected_tails = decode_chunk(vae, latents, tails)
    assert torch.equal(wave, expected)
    assert all(torch.equal(one, two) for one, two in zip(new_tails, expected_tails, strict=True))
