"""AudioVAE encode and whole decode against the reference, in every form of its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import load_speech_nets, write_checkpoint
from tests.parity.compare import assert_parity
from tests.parity.conftest import Pair
from tests.reference import load_reference


def speech_like(n_rows: int, n_samples: int, generator: torch.Generator) -> torch.Tensor:
    """Tones with noise, rows of different pitch: [n_rows, n_samples]."""
    phase = torch.arange(n_samples) * torch.linspace(0.02, 0.2, n_rows).unsqueeze(1)
    return 0.3 * phase.sin() + 0.02 * torch.randn(n_rows, n_samples, generator=generator)


def test_encode_whole_frames(pair: Pair, generator: torch.Generator) -> None:
    wave = speech_like(2, 12 * pair.config.vae.encoder_hop, generator)
    theirs = pair.theirs.audio_vae.encode(wave, pair.config.vae.sample_rate_hz).transpose(1, 2)
    assert_parity("VAE encode", pair.ours.audio_vae.encode(wave), theirs, max_abs=2e-5)


def test_encode_pads_to_whole_frames(pair: Pair, generator: torch.Generator) -> None:
    wave = speech_like(1, 5 * pair.config.vae.encoder_hop + 3, generator)
    theirs = pair.theirs.audio_vae.encode(wave, pair.config.vae.sample_rate_hz).transpose(1, 2)
    ours = pair.ours.audio_vae.encode(wave)
    assert ours.shape[1] == 6
    assert_parity("VAE encode, padded", ours, theirs, max_abs=2e-5)


def test_decode(pair: Pair, generator: torch.Generator) -> None:
    latents = torch.randn(2, 24, pair.config.feat_dim, generator=generator)
    ours = pair.ours.audio_vae.decode(latents)
    assert ours.shape == (2, 24 * pair.config.vae.decoder_hop)
    theirs = pair.theirs.audio_vae.decode(latents.transpose(1, 2)).squeeze(1)
    assert_parity("VAE decode", ours, theirs, max_abs=1e-5)


@pytest.mark.parametrize(
    "vae_config",
    [
        {"sr_bin_boundaries": None},
        {"cond_type": "scale_bias_init", "out_sample_rate": 20000},
        {"cond_type": "scale_bias", "cond_out_layer": True, "out_sample_rate": 48000},
        {"cond_type": "add"},
        {"cond_type": "concat", "cond_dim": 12, "cond_out_layer": True},
    ],
    ids=lambda vae_config: "-".join(f"{key}={value}" for key, value in vae_config.items()),
)
def test_decode_with_every_rate_condition(
    tmp_path: Path, generator: torch.Generator, vae_config: dict[str, Any]
) -> None:
    directory = write_checkpoint(tmp_path, seed=4, audio_vae_config=vae_config)
    latents = torch.randn(1, 8, 16, generator=generator)
    ours = load_speech_nets(directory).audio_vae.decode(latents)
    theirs = load_reference(directory).audio_vae.decode(latents.transpose(1, 2)).squeeze(1)
    assert_parity(f"VAE decode {vae_config}", ours, theirs, max_abs=1e-5)
