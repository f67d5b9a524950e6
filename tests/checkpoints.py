"""Builds tiny random checkpoints in the published directory form, from the reference's modules."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import voxnative
from tests.reference import FAMILIES
from voxnative.checkpoint import iter_lm_tensors, iter_vae_tensors, load_module_strict
from voxnative.config import VoxConfig
from voxnative.nn.speech_nets import SpeechNets

LMFile = Literal["safetensors", "bin", "safetensors-sharded", "bin-sharded"]
VAEFile = Literal["safetensors", "pth", "pth-nested"]

TRAINED_TINY = Path(voxnative.__file__).parent / "checkpoints" / "tiny"
N_POSITIONS = 1024
# Tensors of the paged language model, which no `SpeechNets` holds.
LM_PREFIXES = ("base_lm.", "residual_lm.", "fsq_layer.", "fusion_concat_proj.", "stop_")


def write_checkpoint(
    directory: Path,
    *,
    lm_file: LMFile = "safetensors",
    vae_file: VAEFile = "safetensors",
    seed: int = 0,
    use_mup: bool = False,
    depthwise: bool = True,
    no_rope: bool = True,
    architecture: Literal["voxcpm2", "voxcpm"] = "voxcpm2",
    stop_margin: float = 8.0,
    dtype: torch.dtype = torch.float32,
    **overrides: Any,
) -> Path:
    """Write a random checkpoint whose generation neither collapses nor explodes.

    Args:
        directory: created if needed.
        lm_file, vae_file: form of the weight files; "pth-nested" wraps them in "state_dict".
        seed: of the weights.
        use_mup: scale embeddings and branches.
        depthwise: depthwise convolutions in the VAE.
        no_rope: no positions in the residual LM ("voxcpm2" alone).
        architecture: the family.
        stop_margin: how far the stop head leans towards "continue", in logits: at the default it
            never stops, at 0 one step in a few does.
        dtype: of the stored language-model weights (the VAE's stay fp32).
        **overrides: keys of config.json; objects are merged.

    Returns:
        The directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TRAINED_TINY / name, directory / name)
    config = _tiny_config(use_mup, depthwise, no_rope)
    if architecture == "voxcpm":
        config = _in_the_older_form(config)
    config = _merged(config, overrides)
    (directory / "config.json").write_text(json.dumps(config, indent=1))

    lm, vae = _random_weights(directory, config, seed, stop_margin)
    _write_lm({name: tensor.to(dtype) for name, tensor in lm.items()}, directory, lm_file)
    if vae_file == "safetensors":
        save_file(vae, directory / "audiovae.safetensors")
    else:
        content = {"state_dict": vae} if vae_file == "pth-nested" else vae
        torch.save(content, directory / "audiovae.pth")
    return directory


def load_speech_nets(directory: Path) -> SpeechNets:
    """The networks behind the language models of a checkpoint, in fp32."""
    nets = SpeechNets(VoxConfig.from_dir(directory))
    tensors = chain(iter_lm_tensors(directory), iter_vae_tensors(directory, "audio_vae."))
    load_module_strict(nets, tensors, ignore=LM_PREFIXES)
    return nets.requires_grad_(False)


def _tiny_config(use_mup: bool, depthwise: bool, no_rope: bool) -> dict[str, Any]:
    # Every width differs, head size times heads is no hidden size, odd and even strides.
    return {
        "architecture": "voxcpm2",
        "lm_config": {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_size": 96,
            "intermediate_size": 160,
            "max_position_embeddings": N_POSITIONS,
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "kv_channels": 32,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0 + 0.05 * i for i in range(16)],
                "long_factor": [1.0 + 0.3 * i for i in range(16)],
                "original_max_position_embeddings": N_POSITIONS,
            },
            "vocab_size": 128,
            "use_mup": use_mup,
            "scale_emb": 12,
            "dim_model_base": 256,
            "scale_depth": 1.4,
        },
        "patch_size": 4,
        "feat_dim": 16,
        "residual_lm_num_layers": 2,
        "residual_lm_no_rope": no_rope,
        "scalar_quantization_latent_dim": 24,
        "scalar_quantization_scale": 9,
        "encoder_config": {
            "hidden_dim": 64,
            "ffn_dim": 112,
            "num_heads": 4,
            "num_layers": 2,
            "kv_channels": 32,
        },
        "dit_config": {
            "hidden_dim": 80,
            "ffn_dim": 144,
            "num_heads": 4,
            "num_layers": 2,
            "kv_channels": 32,
            "mean_mode": False,
            "cfm_config": {
                "sigma_min": 1e-6,
                "solver": "euler",
                "t_scheduler": "log-norm",
                "inference_cfg_rate": 2.0,
            },
        },
        "audio_vae_config": {
            "encoder_dim": 8,
            "encoder_rates": [2, 4, 5],
            "latent_dim": 16,
            "decoder_dim": 64,
            "decoder_rates": [5, 4, 3],
            "depthwise": depthwise,
            "sample_rate": 16000,
            "out_sample_rate": 24000,
            "sr_bin_boundaries": [20000, 30000, 40000],
        },
        "max_length": 512,
        "device": "cpu",
        "dtype": "float32",
    }


def _in_the_older_form(config: dict[str, Any]) -> dict[str, Any]:
    """As VoxCPM-0.5B and VoxCPM1.5 publish it: no keys of the second AudioVAE, one sample rate."""
    older = dict(config, architecture="voxcpm", patch_size=2, max_length=320)
    del older["residual_lm_no_rope"]
    older["audio_vae_config"] = {
        "encoder_dim": 8,
        "encoder_rates": [2, 3, 5],
        "latent_dim": 16,
        "decoder_dim": 64,
        "decoder_rates": [5, 3, 2],
        "depthwise": config["audio_vae_config"]["depthwise"],
        "sample_rate": 16000,
    }
    return older


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both_objects = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both_objects else value
    return merged


def _random_weights(
    directory: Path, config: Mapping[str, Any], seed: int, stop_margin: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """State dicts of the model and of the VAE, the latter with its weight-norm pairs."""
    model = random_reference(directory, config, seed, stop_margin)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    prefix = "audio_vae."
    return (
        {name: tensor for name, tensor in weights.items() if not name.startswith(prefix)},
        {
            name.removeprefix(prefix): tensor
            for name, tensor in weights.items()
            if name.startswith(prefix)
        },
    )


def random_reference(
    directory: Path, config: Mapping[str, Any], seed: int, stop_margin: float = 8.0
) -> Any:
    """The reference model of a configuration with random weights.

    Args:
        directory: holds the tokenizer.
        config: content of config.json.
        seed, stop_margin: as `write_checkpoint`.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        family = FAMILIES[config["architecture"]]
        parsed = family.config.model_validate(config)
        tokenizer = family.module.LlamaTokenizerFast.from_pretrained(str(directory))
        model = family.model(parsed, tokenizer, family.vae(parsed.audio_vae_config), device="cpu")
        _disturb_constants(model)
    _sharpen(model)
    _lean_to_continue(model, stop_margin)
    return model


@torch.no_grad()
def _disturb_constants(model: nn.Module) -> None:
    """Make parameters that start as ones or zeros random: a wrong one could not be noticed."""
    for name, parameter in model.named_parameters():
        if parameter.min() == parameter.max():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if name.startswith("audio_vae.") and name.endswith("weight_g"):
            parameter.mul_(1.0 + 0.2 * torch.rand_like(parameter))


@torch.no_grad()
def _sharpen(model: nn.Module) -> None:
    """Bring matrices from torch's default to unit gain: a standard deviation of 1 / sqrt(fan_in).

    With the default, the text hardly reaches the latents (one letter changes them by 0.02, now by
    0.3), and a wrong condition would pass for rounding. Twice as much and the loop is chaotic:
    rounding grows to the size of the latents within 20 steps.
    """
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim == 2 and not name.endswith("embed_tokens.weight")
        if is_matrix and not name.startswith("audio_vae."):
            parameter.mul_(3**0.5)


@torch.no_grad()
def _lean_to_continue(model: Any, margin: float) -> None:
    """Add a constant to the difference of the stop logits, through the bias before the head."""
    model.stop_proj.bias[0] = 10.0  # one feature that is about 10 whatever the hidden state
    model.stop_head.weight[:, 0] = torch.tensor([margin / 20, -margin / 20])


def _write_lm(weights: dict[str, Tensor], directory: Path, form: LMFile) -> None:
    file = "model.safetensors" if form.startswith("safetensors") else "pytorch_model.bin"
    if not form.endswith("-sharded"):
        _save(weights, directory / file)
        return
    names = sorted(weights)
    stem, suffix = file.split(".")
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        shard = f"{stem}-{number:05d}-of-00002.{suffix}"
        _save({name: weights[name] for name in part}, directory / shard)
        weight_map |= dict.fromkeys(part, shard)
    (directory / f"{file}.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


def _save(weights: dict[str, Tensor], path: Path) -> None:
    if path.suffix == ".safetensors":
        save_file(weights, path)
    else:
        torch.save(weights, path)
