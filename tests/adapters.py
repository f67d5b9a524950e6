"""Builds random LoRA adapters in upstream's form, from the reference's own LoRA modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.reference import upstream

EVERYWHERE = {"enable_lm": True, "enable_dit": True, "enable_proj": True}
MLP = ["gate_proj", "up_proj", "down_proj"]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def write_adapter(
    directory: Path,
    checkpoint: Path,
    *,
    seed: int,
    form: Literal["safetensors", "ckpt"] = "safetensors",
    gain: float = 0.4,
    **lora_config: Any,
) -> Path:
    """Write a random adapter that changes what is spoken.

    Args:
        directory: created if needed.
        checkpoint: that it adapts.
        seed: of the weights.
        form: of the weight file.
        gain: size of `alpha / r * B A` against a weight matrix of unit gain.
        **lora_config: fields of the reference's `LoRAConfig`.

    Returns:
        The directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = upstream.LoRAConfig(**lora_config)
    content = {"base_model": str(checkpoint), "lora_config": config.model_dump()}
    (directory / "lora_config.json").write_text(json.dumps(content, indent=2))
    model = upstream.VoxCPM2Model.from_local(
        str(checkpoint), optimize=False, device="cpu", lora_config=config
    )
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, tensor in model.get_lora_state_dict().items():
        values = torch.randn(tensor.shape, generator=generator)
        if name.endswith("lora_A"):
            values /= tensor.shape[1] ** 0.5
        else:
            values *= gain * config.r**0.5 / config.alpha
        weights[name] = values.contiguous()
    if form == "safetensors":
        save_file(weights, directory / "lora_weights.safetensors")
    else:
        torch.save({"state_dict": weights}, directory / "lora_weights.ckpt")
    return directory
