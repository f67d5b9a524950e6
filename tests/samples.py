"""The committed regression sample: what the reference made of fixed seeds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

SAMPLE = Path(__file__).parent / "data" / "tiny_reference.safetensors"


@dataclass(frozen=True)
class Sample:
    """One request and its output.

    Attributes:
        request: text, seed, cfg, timesteps and n_steps.
        latents: [n_steps, P, D] float32.
        audio: [n_steps * patch samples], rounded to half precision.
    """

    request: dict[str, Any]
    latents: Tensor
    audio: Tensor


def read_samples() -> tuple[list[Sample], str]:
    """The samples, and the digest of the weights they were made with."""
    with safe_open(SAMPLE, framework="pt") as file:
        metadata = file.metadata()
        samples = [
            Sample(
                request,
                file.get_tensor(f"latents.{index}"),
                file.get_tensor(f"audio.{index}").float(),
            )
            for index, request in enumerate(json.loads(metadata["requests"]))
        ]
    return samples, metadata["weights_sha256"]
