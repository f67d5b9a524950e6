"""The Triton kernels against plain torch, on the CPU; run with TRITON_INTERPRET=1.

`test_nn_fused.py` runs this file in a process of its own.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from voxnative.config import LMConfig, VAEConfig
from voxnative.nn import local_kernels
from voxnative.nn.audio_vae import AudioVAE
from voxnative.nn.blocks import TransformerStack
from voxnative.nn.cfm import GUIDE_EPS, guide
from voxnative.nn.fused import FusedStack
from voxnative.nn.fused_vae import FusedDecoder
from voxnative.nn.local_kernels import euler_step, heads_a_program
from voxnative.nn.lora import AdapterRows, NetAdapters
from voxnative.nn.rope import apply_rope, rope_tables
from voxnative.nn.rope_kernel import rotate_in_place
from voxnative.nn.vae_stream import StreamDecoder, init_stream

CONFIG = LMConfig(
    hidden_size=80,
    intermediate_size=144,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    vocab_size=0,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    rope_short_factor=tuple(1.0 + 0.05 * i for i in range(16)),
    rope_long_factor=(1.0,) * 16,
    rope_original_max_position=1024,
    max_position_embeddings=1024,
    use_mup=True,
    scale_emb=1.0,
    dim_model_base=256,
    scale_depth=1.0,
    bos_token_id=1,
    eos_token_id=2,
    no_rope=False,
)


@pytest.fixture(scope="module")
def stack() -> TransformerStack:
    torch.manual_seed(0)
    stack = TransformerStack(CONFIG, n_positions=11).requires_grad_(False)
    for name, parameter in stack.named_parameters():
        if name.endswith("layernorm.weight"):
            parameter.add_(0.2 * torch.randn_like(parameter))
    return stack


def largest(x: Tensor, y: Tensor) -> float:
    return float((x - y).abs().max() / y.abs().max())


@pytest.mark.parametrize("few", [True, False], ids=["few programs", "many programs"])
def test_kernels_give_the_same(
    few: bool, stack: TransformerStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each head in a program of its own, and those that share keys together."""
    monkeypatch.setattr(local_kernels, "_MANY_PROGRAMS", 1000 if few else 1)
    assert heads_a_program(2, 4, 2) == (1 if few else 2)
    x = torch.randn(2, 11, stack.norm.weight.shape[0])
    assert largest(FusedStack(stack, kernels=True)(x), stack(x)) < 1e-5


def test_heads_that_share_keys_come_together_where_there_are_many() -> None:
    assert [heads_a_program(n, 16, 2) for n in (2, 32, 128, 800)] == [1, 2, 8, 8]
    assert heads_a_program(800, 12, 2) == 2  # six share keys: two at a time
    assert heads_a_program(800, 4, 4) == 1


def test_a_batch_invariant_layer_sums_in_one_order(
    stack: TransformerStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each head has a program of its own, also where several would come together."""
    monkeypatch.setattr(local_kernels, "_MANY_PROGRAMS", 1)
    groups: list[int] = []
    attend = local_kernels._attend_kernel

    class Launch:
        def __getitem__(self, grid: tuple[int, int]):
            def launch(*arguments: Tensor, **options: int) -> None:
                groups.append(options["GROUP"])
                attend[grid](*arguments, **options)

            return launch

    monkeypatch.setattr(local_kernels, "_attend_kernel", Launch())
    invariant = FusedStack(stack, kernels=True, batch_invariant=True)
    x = torch.randn(6, 11, stack.norm.weight.shape[0])
    among = invariant(x)
    assert largest(among, stack(x)) < 1e-5
    assert torch.equal(invariant(x[:1]), among[:1])
    assert set(groups) == {1}
    FusedStack(stack, kernels=True)(x)
    assert groups[-1] == 2


def test_adapters_add_to_the_products(stack: TransformerStack) -> None:
    stack, rows = copy.deepcopy(stack), AdapterRows()
    adapters = NetAdapters(stack, rows, lambda path: True, 2, 4)
    pairs = {
        path: (torch.randn(4, low.stack_a.shape[2]) / 9, torch.randn(low.stack_b.shape[2], 4) / 4)
        for path, low in adapters.layers.items()
    }
    adapters.write(1, pairs)
    x, slots = torch.randn(3, 11, stack.norm.weight.shape[0]), torch.tensor([1, 0, 1])
    base = stack(x)
    with rows.using(slots):
        expected = stack(x)
    fused = FusedStack(stack, kernels=True)
    with rows.using(slots, masked=True):
        got = fused(x)
    assert largest(got, expected) < 1e-5
    assert largest(expected[0], base[0]) > 0.05
    assert largest(expected[1], base[1]) < 1e-6


def test_kernels_without_positions(stack: TransformerStack) -> None:
    blind = copy.copy(stack)
    blind.__dict__ = {**stack.__dict__, "_buffers": {"cos": None, "sin": None}}
    x = torch.randn(2, 5, stack.norm.weight.shape[0])
    assert largest(FusedStack(blind, kernels=True)(x), blind(x)) < 1e-5
    assert largest(blind(x), stack(x)) > 1e-3


def test_rotation_in_place_leaves_values_alone() -> None:
    cos, sin = rope_tables(CONFIG, 40)
    positions = torch.tensor([0, 7, 39])
    hd = CONFIG.head_dim
    qkv = torch.randn(3, 5 * hd)  # 3 rotated heads, 2 that stay
    heads = qkv.clone().view(3, 5, hd)
    expected = torch.cat(
        (apply_rope(heads[:, :3], cos[positions], sin[positions]), heads[:, 3:]), 1
    )
    rotate_in_place(qkv, cos[positions], sin[positions], 3, hd)
    assert (qkv.view(3, 5, hd) - expected).abs().max() < 1e-6
    assert torch.equal(qkv.view(3, 5, hd)[:, 3:], heads[:, 3:])


def test_an_euler_step_with_guidance() -> None:
    v, x, cfg = torch.randn(6, 4, 12), torch.randn(3, 4, 12), torch.tensor([1.0, 2.0, 3.5])
    dt = torch.tensor(0.13)
    expected = x - dt * guide(*v.chunk(2), cfg)
    assert largest(euler_step(v, x, cfg, dt, GUIDE_EPS), expected) < 1e-5


def test_the_last_positions_alone(stack: TransformerStack) -> None:
    """The input stays as it is: the solver keeps it for the next timestep."""
    two = copy.deepcopy(stack)
    two.layers.append(copy.deepcopy(stack.layers[0]))
    for plain in (stack, two):
        x = torch.randn(2, 11, stack.norm.weight.shape[0])
        before = x.clone()
        assert largest(FusedStack(plain, kernels=True).last(x, 4), plain(x)[:, -4:]) < 1e-5
        assert torch.equal(x, before)


def test_the_decoder_in_chunks_on_kernels() -> None:
    config = VAEConfig(
        encoder_dim=4,
        encoder_rates=(2,),
        latent_dim=6,
        decoder_dim=8,
        decoder_rates=(3, 2),
        sr_bin_boundaries=(20_000, 30_000),
    )
    torch.manual_seed(0)
    vae = AudioVAE(config).requires_grad_(False)
    for name, parameter in vae.decoder.named_parameters():
        if name.endswith("alpha") or "embed" in name:
            parameter.copy_(1.0 + 0.3 * torch.randn_like(parameter))
    plain, fused = StreamDecoder(vae), StreamDecoder(vae, kernels=True)
    assert isinstance(fused._run, FusedDecoder)
    tails = [init_stream(vae, 2), init_stream(vae, 2)]
    for _ in range(2):
        latents = torch.randn(2, 4, 6)
        expected, tails[0] = plain.decode(latents, tails[0])
        wave, tails[1] = fused.decode(latents, tails[1])
        assert expected.std() > 0.1
        assert (wave - expected).abs().max() < 1e-5
        for new, old in zip(tails[1], tails[0], strict=True):
            assert new.shape == old.shape
            assert (new - old).abs().max() < 1e-4
