"""Requests that both runners answer, see `runner_v2`."""

from __future__ import annotations

from typing import Any

import numpy as np

CALLS: dict[str, dict[str, Any]] = {
    "alone": {"text": "good morning.", "seed": 1, "max_steps": 6, "min_steps": 5},
    "other": {"text": "the train was late.", "seed": 3, "max_steps": 7, "min_steps": 6},
    "five steps": {
        "text": "the train was late.", "seed": 2, "max_steps": 5, "min_steps": 4, "timesteps": 5,
    },
    "continued": {"text": "good night.", "seed": 5, "max_steps": 4, "min_steps": 3},
    "voice": {"text": "good morning.", "seed": 4, "max_steps": 4, "min_steps": 3},
    "long": {"text": "good morning.", "seed": 1, "max_steps": 30, "min_steps": 29},
}  # fmt: skip


def recording() -> tuple[np.ndarray, int]:
    """Six seconds of a tone: more patches than a KV block holds, so that one is found again."""
    return (0.3 * np.sin(0.1 * np.arange(6 * 16_000))).astype(np.float32), 16_000


def with_audio(name: str) -> dict[str, Any]:
    """A call's arguments, with its recording."""
    arguments = {"cfg": 3.0} | CALLS[name]
    if name == "voice":
        arguments["reference"] = recording()
    if name == "continued":
        arguments |= {"prompt": recording(), "prompt_text": "good morning."}
    return arguments
