"""Step `export`: averaged weights -> a checkpoint directory in the published VoxCPM2 form."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from reference_model import build_tts, build_vae, checkpoint_config
from safetensors.torch import save_file
from tokenizer import FIRST_CAPITAL_ID, FIRST_LETTER_ID, write_tokenizer


def ignore_case(embedding: torch.Tensor) -> torch.Tensor:
    """Copy each small letter's row of the token embedding [128, H] to its capital."""
    embedding = embedding.clone()
    embedding[FIRST_CAPITAL_ID : FIRST_CAPITAL_ID + 26] = embedding[
        FIRST_LETTER_ID : FIRST_LETTER_ID + 26
    ]
    return embedding


def to_half(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Store floating point weights in float16; readers widen them to their own type.

    Raises:
        ValueError: a weight does not fit float16; names it.
    """
    half = {}
    for name, value in state.items():
        if value.is_floating_point():
            value = value.half()
            if not value.isfinite().all():
                raise ValueError(f"{name} does not fit float16")
        half[name] = value.contiguous()
    return half


def run(settings, work: Path, checkpoint: Path) -> dict:
    """Write configuration, tokenizer and both weight files to `checkpoint`.

    Raises:
        FileNotFoundError: a training has not saved anything yet.
    """
    vae_path = work / "vae" / "decoder.pt"
    if not vae_path.exists():
        vae_path = work / "vae" / "frozen.pt"
    vae_state = torch.load(vae_path, map_location="cpu")
    build_vae(settings).load_state_dict(vae_state)

    tts_state = torch.load(work / "tts" / "average.pt", map_location="cpu")
    tts_state["base_lm.embed_tokens.weight"] = ignore_case(tts_state["base_lm.embed_tokens.weight"])
    build_tts(settings).load_state_dict(tts_state)

    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "config.json").write_text(
        json.dumps(checkpoint_config(settings), indent=1) + "\n"
    )
    write_tokenizer(checkpoint)
    save_file(to_half(vae_state), checkpoint / "audiovae.safetensors")
    save_file(to_half(tts_state), checkpoint / "model.safetensors")
    n_bytes = sum(path.stat().st_size for path in checkpoint.iterdir())
    n_parameters = {
        "vae": sum(v.numel() for v in vae_state.values()),
        "tts": sum(v.numel() for v in tts_state.values()),
    }
    return {
        "checkpoint": str(checkpoint),
        "megabytes": round(n_bytes / 1e6, 2),
        "parameters": n_parameters,
    }
