"""SpeechNets: names, dtypes and the condition."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open

from voxnative.config import VoxConfig
from voxnative.nn.speech_nets import SpeechNets


def test_names_are_the_checkpoint_s(tiny_dir: Path, tiny_config: VoxConfig) -> None:
    """Every tensor of the files belongs to the paged language model or to one of our names."""
    ours = set(SpeechNets(tiny_config).state_dict())
    stored: set[str] = set()
    for file, prefix in (("model.safetensors", ""), ("audiovae.safetensors", "audio_vae.")):
        with safe_open(tiny_dir / file, "pt") as content:
            stored |= {prefix + name for name in content.keys()}  # noqa: SIM118 - no mapping
    stored -= {name for name in stored if name.endswith("weight_g")}
    stored = {name.replace("weight_v", "weight") for name in stored}
    assert ours <= stored
    paged = {name.split(".")[0] for name in stored - ours}
    assert paged == {
        "base_lm",
        "residual_lm",
        "fsq_layer",
        "fusion_concat_proj",
        "stop_proj",
        "stop_head",
    }


def test_the_vae_is_fp32_under_a_lower_default_dtype(tiny_config: VoxConfig) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        nets = SpeechNets(tiny_config)
    finally:
        torch.set_default_dtype(before)
    assert nets.enc_to_lm_proj.weight.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in nets.audio_vae.parameters()} == {torch.float32}
    assert nets.feat_encoder.encoder.cos.dtype == torch.float32


def test_condition_is_the_base_lm_s_token_then_the_residual_s(tiny_config: VoxConfig) -> None:
    nets = SpeechNets(tiny_config).requires_grad_(False)
    hidden, residual = torch.randn(2, 3, tiny_config.lm.hidden_size)
    mu = nets.dit_condition(hidden, residual)
    width = tiny_config.dit.hidden_size
    assert torch.equal(mu[:, :width], nets.lm_to_dit_proj(hidden))
    assert torch.equal(mu[:, width:], nets.res_to_dit_proj(residual))


def test_patches_become_lm_inputs(tiny_config: VoxConfig) -> None:
    nets = SpeechNets(tiny_config).requires_grad_(False)
    patches = torch.randn(3, tiny_config.patch_size, tiny_config.feat_dim)
    assert nets.embed_patches(patches).shape == (3, tiny_config.lm.hidden_size)
