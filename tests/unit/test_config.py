"""VoxConfig: the published form, derived sizes, and everything that is refused."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from voxnative.config import VoxConfig
from voxnative.errors import CheckpointError

# openbmb/VoxCPM2's config.json, its 64 LongRoPE factors replaced by a formula.
PUBLISHED: dict[str, Any] = {
    "architecture": "voxcpm2",
    "lm_config": {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 32768,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "kv_channels": 128,
        "rope_scaling": {
            "type": "longrope",
            "long_factor": [1.0 + 0.5 * i for i in range(64)],
            "short_factor": [1.0 + 0.25 * i for i in range(64)],
            "original_max_position_embeddings": 32768,
        },
        "vocab_size": 73448,
        "use_mup": False,
        "scale_emb": 12,
        "dim_model_base": 256,
        "scale_depth": 1.4,
    },
    "patch_size": 4,
    "feat_dim": 64,
    "scalar_quantization_latent_dim": 512,
    "scalar_quantization_scale": 9,
    "residual_lm_num_layers": 8,
    "residual_lm_no_rope": True,
    "encoder_config": {
        "hidden_dim": 1024,
        "ffn_dim": 4096,
        "num_heads": 16,
        "num_layers": 12,
        "kv_channels": 128,
    },
    "dit_config": {
        "hidden_dim": 1024,
        "ffn_dim": 4096,
        "num_heads": 16,
        "num_layers": 12,
        "kv_channels": 128,
        "mean_mode": False,
        "cfm_config": {
            "sigma_min": 1e-06,
            "solver": "euler",
            "t_scheduler": "log-norm",
            "inference_cfg_rate": 2.0,
        },
    },
    "audio_vae_config": {
        "encoder_dim": 128,
        "encoder_rates": [2, 5, 8, 8],
        "latent_dim": 64,
        "decoder_dim": 2048,
        "decoder_rates": [8, 6, 5, 2, 2, 2],
        "sr_bin_boundaries": [20000, 30000, 40000],
        "sample_rate": 16000,
        "out_sample_rate": 48000,
    },
    "max_length": 8192,
    "device": "cuda",
    "dtype": "bfloat16",
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """PUBLISHED with the value at a dotted path replaced."""
    content = copy.deepcopy(PUBLISHED)
    *parents, key = path.split(".")
    target = content
    for parent in parents:
        target = target[parent]
    target[key] = value
    return content


def without(path: str) -> dict[str, Any]:
    """PUBLISHED with the key at a dotted path removed."""
    content = changed(path, None)
    *parents, key = path.split(".")
    target = content
    for parent in parents:
        target = target[parent]
    del target[key]
    return content


def test_published_sizes() -> None:
    config = VoxConfig.from_dict(PUBLISHED)
    assert (config.lm.hidden_size, config.lm.num_hidden_layers, config.lm.head_dim) == (
        2048,
        28,
        128,
    )
    assert config.lm.rope_long_factor[1] == 1.5
    assert config.lm.rope_short_factor[1] == 1.25
    assert config.patch_samples_in == 2560  # 160 ms at 16 kHz
    assert config.patch_samples_out == 7680  # 160 ms at 48 kHz
    assert (config.audio_patch_id, config.continue_id, config.stop_id) == (73448, 73449, 73450)
    assert config.engine_vocab_size == 73451
    assert config.dtype == "bfloat16"
    assert config.dit_mean_mode is False
    assert config.cfm.inference_cfg_rate == 2.0
    assert config.vae.depthwise is True  # not in the file: the reference's default
    assert config.raw["device"] == "cuda"


def test_parts_inherit_from_the_base_lm() -> None:
    config = VoxConfig.from_dict(PUBLISHED)
    residual = dataclasses.replace(config.lm, num_hidden_layers=8, vocab_size=0, no_rope=True)
    assert config.residual_lm == residual
    for part in (config.encoder, config.dit):
        assert (part.hidden_size, part.num_hidden_layers, part.head_dim) == (1024, 12, 128)
        assert (part.num_key_value_heads, part.vocab_size, part.no_rope) == (2, 0, False)
        assert part.rope_short_factor == config.lm.rope_short_factor


def test_head_size_without_kv_channels_is_hidden_over_heads() -> None:
    assert VoxConfig.from_dict(without("lm_config.kv_channels")).lm.head_dim == 2048 // 16


def test_mup_scales() -> None:
    plain = VoxConfig.from_dict(PUBLISHED)
    assert (plain.lm.branch_scale, plain.lm.embedding_scale) == (1.0, 1.0)
    mup = VoxConfig.from_dict(changed("lm_config.use_mup", True))
    assert mup.lm.embedding_scale == 12.0
    assert mup.lm.branch_scale == pytest.approx(1.4 / 28**0.5)
    assert mup.dit.branch_scale == pytest.approx(1.4 / 12**0.5)


def test_vae_section_may_be_absent() -> None:
    config = VoxConfig.from_dict(without("audio_vae_config"))
    assert config.vae.decoder_hop == 1920
    assert config.vae.sr_bin_boundaries == (20000, 30000, 40000)


def test_null_rate_bins() -> None:
    config = VoxConfig.from_dict(changed("audio_vae_config.sr_bin_boundaries", None))
    assert config.vae.sr_bin_boundaries is None


def test_keys_of_hugging_face_tools_are_accepted() -> None:
    content = {**PUBLISHED, "model_type": "voxcpm2", "architectures": ["X"], "torch_dtype": "x"}
    assert VoxConfig.from_dict(content) == VoxConfig.from_dict(PUBLISHED)


@pytest.mark.parametrize(
    ("spelling", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16"), ("float16", "float16")]
)
def test_dtype_spellings(spelling: str, dtype: str) -> None:
    assert VoxConfig.from_dict(changed("dtype", spelling)).dtype == dtype


@pytest.mark.parametrize(
    "path",
    [
        "temperature",
        "lm_config.hidden_sizes",
        "lm_config.rope_scaling.factor",
        "encoder_config.dropout",
        "dit_config.dropout",
        "dit_config.cfm_config.steps",
        "audio_vae_config.rates",
    ],
)
def test_unknown_key_is_named_with_the_valid_ones(path: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        VoxConfig.from_dict(changed(path, 1), path="config.json")
    message = str(caught.value)
    assert f"unknown key {path}" in message
    assert "valid: " in message
    sibling = {"temperature": "patch_size", "lm_config.hidden_sizes": "hidden_size"}.get(path)
    assert sibling is None or sibling in message
    assert caught.value.path == Path("config.json")


@pytest.mark.parametrize(
    "path",
    [
        "architecture",
        "lm_config",
        "lm_config.vocab_size",
        "lm_config.rope_scaling",
        "lm_config.rope_scaling.short_factor",
        "encoder_config",
        "dit_config",
        "dit_config.cfm_config",
    ],
)
def test_missing_key_is_named(path: str) -> None:
    with pytest.raises(CheckpointError, match=f"key {path} is missing in somewhere"):
        VoxConfig.from_dict(without(path), path="somewhere")


@pytest.mark.parametrize(
    ("path", "value", "valid"),
    [
        ("architecture", "voxcpm3", '"voxcpm2", "voxcpm"'),
        ("patch_size", True, "an integer of 1 or more"),
        ("patch_size", 4.0, "an integer of 1 or more"),
        ("patch_size", 0, "an integer of 1 or more"),
        ("patch_size", None, "an integer of 1 or more"),
        ("feat_dim", 32, "audio_vae_config.latent_dim, 64"),
        ("dtype", "int8", '"bfloat16"'),
        ("lm_config", [], "an object"),
        ("lm_config.rms_norm_eps", "1e-5", "a finite number"),
        ("lm_config.rope_theta", float("inf"), "a finite number"),
        ("lm_config.use_mup", 0, "true or false"),
        ("lm_config.num_key_value_heads", 3, "a multiple of"),
        ("lm_config.kv_channels", 64, "128, twice the number"),
        ("lm_config.rope_scaling.type", "linear", '"longrope"'),
        ("lm_config.rope_scaling.long_factor", [], "not empty"),
        ("lm_config.rope_scaling.long_factor", ["1"], "finite numbers"),
        ("encoder_config.num_heads", 5, "a multiple of"),
        ("dit_config.cfm_config.solver", "heun", '"euler"'),
        ("audio_vae_config.use_noise_block", True, "fresh noise"),
        ("audio_vae_config.cond_type", "film", '"scale_bias"'),
        ("audio_vae_config.cond_type", "concat", 'true where cond_type is "concat"'),
        ("audio_vae_config.decoder_dim", 2000, "a multiple of 64"),
        ("audio_vae_config.encoder_rates", [2, 0], "integers of 1 or more"),
        ("long_text_joint", "glue", '"continue", "reference"'),
    ],
)
def test_wrong_value_is_named_with_what_is_valid(path: str, value: Any, valid: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        VoxConfig.from_dict(changed(path, value))
    message = str(caught.value)
    assert f"key {path.split('.')[0]}" in message
    assert valid in message
    assert len(message) < 400


def test_a_long_wrong_value_is_shortened() -> None:
    with pytest.raises(CheckpointError) as caught:
        VoxConfig.from_dict(changed("dtype", "x" * 10_000))
    assert len(str(caught.value)) < 300


def test_from_dir_reads_the_shipped_checkpoint(tiny_dir: Path) -> None:
    config = VoxConfig.from_dir(tiny_dir)
    assert config.lm.hidden_size == config.raw["lm_config"]["hidden_size"]
    assert (config.text_frontend, config.long_text_joint) == ("english", "separate")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot read"), ("{", "not valid JSON"), ("[]", "does not hold a JSON object")],
)
def test_unreadable_file(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        VoxConfig.from_dir(tmp_path)
    assert caught.value.path == tmp_path / "config.json"


def test_config_is_frozen() -> None:
    config = VoxConfig.from_dict(PUBLISHED)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.patch_size = 8  # type: ignore[misc]


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    assert VoxConfig.from_dir(tmp_path) == VoxConfig.from_dict(PUBLISHED)
