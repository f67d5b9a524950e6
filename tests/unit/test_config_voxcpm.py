"""The published forms of VoxCPM-0.5B and VoxCPM1.5, and what their family refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from voxnative.config import VoxConfig
from voxnative.errors import CheckpointError
from voxnative.family import VOXCPM

# openbmb/VoxCPM-0.5B's config.json, its 32 LongRoPE factors replaced by a formula. The AudioVAE
# has no section: it is the reference's default.
VOXCPM_05B: dict[str, Any] = {
    "architecture": "voxcpm",
    "lm_config": {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "max_position_embeddings": 32768,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "rope_scaling": {
            "type": "longrope",
            "long_factor": [1.0 + 0.5 * i for i in range(32)],
            "short_factor": [1.0 + 0.25 * i for i in range(32)],
            "original_max_position_embeddings": 32768,
        },
        "vocab_size": 73448,
        "scale_emb": 12,
        "dim_model_base": 256,
        "scale_depth": 1.4,
        "use_mup": False,
    },
    "patch_size": 2,
    "feat_dim": 64,
    "scalar_quantization_latent_dim": 256,
    "scalar_quantization_scale": 9,
    "residual_lm_num_layers": 6,
    "encoder_config": {"hidden_dim": 1024, "ffn_dim": 4096, "num_heads": 16, "num_layers": 4},
    "dit_config": {
        "hidden_dim": 1024,
        "ffn_dim": 4096,
        "num_heads": 16,
        "num_layers": 4,
        "cfm_config": {
            "sigma_min": 1e-06,
            "solver": "euler",
            "t_scheduler": "log-norm",
            "inference_cfg_rate": 2.0,
        },
    },
    "max_length": 4096,
    "device": "cuda",
    "dtype": "bfloat16",
}

# openbmb/VoxCPM1.5: deeper local networks, patches of four, another AudioVAE.
VOXCPM_15: dict[str, Any] = copy.deepcopy(VOXCPM_05B) | {
    "patch_size": 4,
    "residual_lm_num_layers": 8,
    "encoder_config": VOXCPM_05B["encoder_config"] | {"num_layers": 8},
    "dit_config": VOXCPM_05B["dit_config"] | {"num_layers": 8},
    "audio_vae_config": {
        "encoder_dim": 64,
        "encoder_rates": [2, 3, 6, 7, 7],
        "latent_dim": 64,
        "decoder_dim": 2048,
        "decoder_rates": [7, 7, 6, 3, 2],
        "sample_rate": 44100,
    },
    "max_length": 8192,
}


@pytest.mark.parametrize(
    ("published", "patch_samples", "rate_hz"),
    [(VOXCPM_05B, 1280, 16_000), (VOXCPM_15, 7056, 44_100)],
    ids=["0.5B", "1.5"],
)
def test_published_sizes(published: dict[str, Any], patch_samples: int, rate_hz: int) -> None:
    config = VoxConfig.from_dict(published)
    assert config.family is VOXCPM
    assert config.lm.head_dim == 64  # no kv_channels: hidden size over heads
    assert (config.encoder.head_dim, config.dit.head_dim) == (64, 64)
    assert config.patch_samples_in == config.patch_samples_out == patch_samples
    assert config.vae.sample_rate_hz == config.vae.out_sample_rate_hz == rate_hz
    assert config.vae.sr_bin_boundaries is None
    assert config.vae.late_odd_strides
    assert not config.residual_lm.no_rope
    assert config.residual_lm.num_hidden_layers == published["residual_lm_num_layers"]
    assert config.mu_size == 1024  # one token
    assert config.dit_mean_mode is False


def test_one_patch_lasts_80_and_160_ms() -> None:
    small, large = VoxConfig.from_dict(VOXCPM_05B), VoxConfig.from_dict(VOXCPM_15)
    assert small.patch_samples_out / small.vae.out_sample_rate_hz == 0.08
    assert large.patch_samples_out / large.vae.out_sample_rate_hz == 0.16


def test_defaults_are_the_family_s() -> None:
    content = copy.deepcopy(VOXCPM_05B)
    for key in ("patch_size", "scalar_quantization_latent_dim", "residual_lm_num_layers"):
        del content[key]
    del content["max_length"]
    assert VoxConfig.from_dict(content) == VoxConfig.from_dict(VOXCPM_05B)


def test_mean_mode_stands_at_the_top() -> None:
    assert VoxConfig.from_dict(VOXCPM_05B | {"dit_mean_mode": True}).dit_mean_mode
    nested = VOXCPM_05B | {"dit_config": VOXCPM_05B["dit_config"] | {"dit_mean_mode": True}}
    with pytest.raises(CheckpointError, match=r"unknown key dit_config\.dit_mean_mode"):
        VoxConfig.from_dict(nested)


def test_the_residual_lm_has_the_base_lm_s_positions() -> None:
    content = VOXCPM_05B | {"lm_config": VOXCPM_05B["lm_config"] | {"no_rope": True}}
    assert VoxConfig.from_dict(content).residual_lm.no_rope


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"residual_lm_no_rope": True}, "unknown key residual_lm_no_rope"),
        (
            {"audio_vae_config": {"out_sample_rate": 48000}},
            r"unknown key audio_vae_config\.out_sample_rate",
        ),
        (
            {"audio_vae_config": {"decoder_rates": [8, 6, 5, 2]}},
            r"audio_vae_config\.decoder_rates: .*encoder_rates, 640",
        ),
        ({"audio_vae_config": {"use_noise_block": True}}, "fresh noise"),
    ],
)
def test_what_the_family_does_not_have_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        VoxConfig.from_dict(VOXCPM_05B | changes)
