"""Streaming decode: deltas against the whole decode and against the reference's stream."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.parity.compare import assert_parity
from tests.parity.conftest import VOXCPM2, Pair
from voxnative.nn.audio_vae import AudioVAE
from voxnative.nn.vae_stream import decode_chunk, init_stream

N_FRAMES = 24


def stream(vae: AudioVAE, latents: Tensor, n_frames: list[int]) -> Tensor:
    """Decode [B, F, D] in chunks of the given sizes and concatenate."""
    tails, waves = init_stream(vae, len(latents)), []
    for chunk in latents.split(n_frames, dim=1):
        wave, tails = decode_chunk(vae, chunk, tails)
        waves.append(wave)
    return torch.cat(waves, dim=1)


@pytest.mark.parametrize(
    "n_frames", [[4] * 6, [1] * 24, [12, 12], [1, 2, 3, 4, 5, 9]], ids=lambda sizes: str(len(sizes))
)
def test_deltas_concatenate_to_the_whole(
    pair: Pair, generator: torch.Generator, n_frames: list[int]
) -> None:
    vae = pair.ours.audio_vae
    latents = torch.randn(2, N_FRAMES, pair.config.feat_dim, generator=generator)
    whole = vae.decode(latents)
    assert_parity("stream and whole", stream(vae, latents, n_frames), whole, max_abs=1e-5)
    # What goes wrong without state, for scale: chunks decoded from nothing.
    stateless = torch.cat([vae.decode(chunk) for chunk in latents.split(n_frames, dim=1)], dim=1)
    assert (stateless - whole).abs().max() > 1e-3


@pytest.mark.parametrize("pair", VOXCPM2, indirect=True)  # the older family decodes windows
def test_deltas_equal_the_reference_s_stream(pair: Pair, generator: torch.Generator) -> None:
    P = pair.config.patch_size
    latents = torch.randn(1, N_FRAMES, pair.config.feat_dim, generator=generator)
    with pair.theirs.audio_vae.streaming_decode() as decoder:
        theirs = [
            decoder.decode_chunk(chunk.transpose(1, 2)).squeeze(1)
            for chunk in latents.split(P, dim=1)
        ]
    ours = stream(pair.ours.audio_vae, latents, [P] * (N_FRAMES // P))
    assert_parity("streams", ours, torch.cat(theirs, dim=1), max_abs=1e-5)


def test_rows_at_different_positions_share_a_call(pair: Pair, generator: torch.Generator) -> None:
    """Two streams that start three chunks apart, each equal to its stream alone."""
    vae, P = pair.ours.audio_vae, pair.config.patch_size
    early, late = torch.randn(2, N_FRAMES, pair.config.feat_dim, generator=generator)
    alone = stream(vae, torch.stack((early, late)), [P] * (N_FRAMES // P))

    slots = init_stream(vae, n_slots=5)
    pieces: dict[int, list[Tensor]] = {1: [], 3: []}
    chunks = {1: early.split(P), 3: late.split(P)}
    for step in range(N_FRAMES // P + 3):
        due = {slot: step - start for slot, start in ((3, 3), (1, 0))}
        live = [slot for slot, index in due.items() if 0 <= index < N_FRAMES // P]
        rows = torch.tensor(live)
        latents = torch.stack([chunks[slot][due[slot]] for slot in live])
        wave, tails = decode_chunk(vae, latents, [slot_tails[rows] for slot_tails in slots])
        for slot_tails, new in zip(slots, tails, strict=True):
            slot_tails[rows] = new
        for slot, delta in zip(live, wave, strict=True):
            pieces[slot].append(delta)
    assert_parity("early stream", torch.cat(pieces[1]), alone[0], max_abs=1e-5)
    assert_parity("late stream", torch.cat(pieces[3]), alone[1], max_abs=1e-5)
    untouched = [slot_tails[[0, 2, 4]] for slot_tails in slots]
    assert all(not tails.any() for tails in untouched)
