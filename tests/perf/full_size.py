"""Random weights of the published size in the published form, for measurements without the model.

The stop head is zero: both logits are equal, "continue" wins, and every request runs to its cap.
Matrices have unit gain, so that hidden states neither vanish nor explode over 28 layers.

    python -m tests.perf.full_size DIRECTORY [--tiny] [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import voxnative
from voxnative.checkpoint_shapes import expected_shapes
from voxnative.config import VoxConfig
from voxnative.lora_file import read_lora_config

TINY = Path(voxnative.__file__).parent / "checkpoints" / "tiny"
VAE_PREFIX = "audio_vae."
N_ROPE_FACTORS = 64


def published_config() -> dict[str, Any]:
    """`config.json` with the sizes of openbmb/VoxCPM2."""
    return {
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
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "kv_channels": 128,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0 + 0.01 * i for i in range(N_ROPE_FACTORS)],
                "long_factor": [1.0 + 0.01 * i for i in range(N_ROPE_FACTORS)],
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
        "residual_lm_num_layers": 8,
        "residual_lm_no_rope": True,
        "scalar_quantization_latent_dim": 512,
        "scalar_quantization_scale": 9,
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
            "cfm_config": {
                "sigma_min": 1e-6,
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
            "sample_rate": 16000,
            "out_sample_rate": 48000,
            "sr_bin_boundaries": [20000, 30000, 40000],
        },
        "max_length": 8192,
        "device": "cuda",
        "dtype": "bfloat16",
    }


def tiny_config() -> dict[str, Any]:
    """The shipped checkpoint's sizes, to try the same code on a CPU."""
    config: dict[str, Any] = json.loads((TINY / "config.json").read_text())
    config.pop("text_frontend", None)
    return config


def random_tensor(name: str, shape: tuple[int, ...], config: VoxConfig, device: str) -> Tensor:
    """One tensor of the checkpoint, fp32."""
    if name.endswith("sr_bin_boundaries"):
        return torch.tensor(config.vae.sr_bin_boundaries, dtype=torch.int32, device=device)
    if name.startswith("stop_head."):
        return torch.zeros(shape, device=device)
    if name.endswith((".alpha", "norm.weight", "layernorm.weight")) or "scale_embed" in name:
        return 1.0 + 0.1 * torch.randn(shape, device=device)
    if len(shape) < 2:
        return 0.02 * torch.randn(shape, device=device)
    if "embed" in name or name.endswith("special_token"):
        return torch.randn(shape, device=device) * (0.02 if "bias_embed" in name else 1.0)
    # The AudioVAE's residual units would add up to a saturated waveform at unit gain.
    fan_in = math.prod(shape[1:]) * (3 if name.startswith(VAE_PREFIX) else 1)
    return torch.randn(shape, device=device) / math.sqrt(fan_in)


def write_full_size(
    directory: Path, *, tiny: bool = False, device: str = "cpu", seed: int = 0
) -> Path:
    """Write `config.json`, `model.safetensors` (bf16), `audiovae.pth` and the tokenizer.

    The AudioVAE has its weight-norm pairs, as published: other implementations read them too.

    Args:
        directory: created if needed.
        tiny: the shipped checkpoint's sizes.
        device: where numbers are drawn; "cuda" takes seconds, a CPU a minute.
        seed: of all weights.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, directory / name)
    content = tiny_config() if tiny else published_config()
    (directory / "config.json").write_text(json.dumps(content, indent=1))
    config = VoxConfig.from_dict(content)
    torch.manual_seed(seed)
    lm: dict[str, Tensor] = {}
    vae: dict[str, Tensor] = {}
    for name, shape in expected_shapes(config).items():
        tensor = random_tensor(name, shape, config, device)
        if not name.startswith(VAE_PREFIX):
            lm[name] = tensor.to(torch.bfloat16).cpu()
            continue
        name = name.removeprefix(VAE_PREFIX)
        if name.endswith(".weight") and tensor.ndim == 3:
            dims = tuple(range(1, tensor.ndim))
            stem = name.removesuffix("weight")
            vae[stem + "weight_g"] = torch.linalg.vector_norm(tensor, dim=dims, keepdim=True).cpu()
            vae[stem + "weight_v"] = tensor.cpu()
        else:
            vae[name] = tensor.cpu()
    save_file(lm, directory / "model.safetensors")
    torch.save({"state_dict": vae}, directory / "audiovae.pth")
    return directory


def write_random_adapter(
    directory: Path, config: VoxConfig, *, seed: int, rank: int, gain: float = 0.2
) -> Path:
    """Write a random LoRA adapter of all layers that its default targets name.

    Args:
        directory: created if needed.
        config: of the checkpoint that it adapts.
        seed: of the weights.
        rank: of every pair of matrices; alpha is the same.
        gain: size of `B A` against a weight matrix of unit gain.
    """
    directory.mkdir(parents=True, exist_ok=True)
    fields = {"r": rank, "alpha": rank, "enable_lm": True, "enable_dit": True, "enable_proj": True}
    (directory / "lora_config.json").write_text(json.dumps({"lora_config": fields}))
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for module, (n_out, n_in) in read_lora_config(directory, config).modules.items():
        a, b = (torch.randn(shape, generator=generator) for shape in ((rank, n_in), (n_out, rank)))
        tensors[f"{module}.lora_A"] = a / math.sqrt(n_in)
        tensors[f"{module}.lora_B"] = b * gain / math.sqrt(rank)
    save_file(tensors, directory / "lora_weights.safetensors")
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    started = time.perf_counter()
    write_full_size(arguments.directory, tiny=arguments.tiny, device=arguments.device)
    print(f"{arguments.directory}: written in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
