"""The whole generation loop through vLLM's engine against the reference implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines import RecordingEngine
from tests.reference import reference_generate

N_STEPS = 48
TOLERANCE = 1e-4
TEXT = "the quick brown fox jumps over the lazy dog"

MODES: dict[str, dict[str, Any]] = {
    "zero_shot": {},
    "reference": {"reference": (110, 1.3)},
    "continuation": {"prompt": (150, 0.9), "prompt_text": "hello there "},
    "both": {"reference": (110, 1.3), "prompt": (150, 0.9), "prompt_text": "hello there "},
}


def recordings(mode: str, voice: Callable[[int, float], np.ndarray]) -> dict[str, Any]:
    arguments = dict(MODES[mode])
    for name in ("reference", "prompt"):
        if name in arguments:
            arguments[name] = voice(*arguments[name])
    return arguments


def with_rate(arguments: dict[str, Any], rate_hz: int = 16_000) -> dict[str, Any]:
    """Arrays as the API takes them."""
    return {k: (v, rate_hz) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}


@pytest.mark.parametrize("mode", MODES)
def test_forty_eight_steps_equal_the_reference(
    mode: str, roomy: RecordingEngine, voice: Callable[[int, float], np.ndarray]
) -> None:
    arguments = recordings(mode, voice)
    expected = reference_generate(
        roomy.directory, TEXT, seed=11, n_steps=N_STEPS, cfg=2.0, timesteps=10, **arguments
    )
    call = {"text": TEXT, "seed": 11, "cfg": 2.0, "timesteps": 10, "max_steps": N_STEPS}
    (got,) = roomy.run(call | with_rate(arguments))

    assert len(got.latents) == N_STEPS
    error = (got.latents - expected.latents).abs()
    audio_error = (torch.from_numpy(got.result.samples) - expected.audio).abs()
    print(
        f"{mode}: latents max {error.max():.2e} mean {error.mean():.2e}, scale "
        f"{expected.latents.abs().mean():.2f}; audio max {audio_error.max():.2e}"
    )
    assert error.max() < TOLERANCE
    assert audio_error.max() < TOLERANCE


def test_the_stop_decision_equals_the_reference(speaking: RecordingEngine) -> None:
    text = "hello there, how are you doing today?"
    expected = reference_generate(speaking.directory, text, seed=5, cfg=3.0)
    (got,) = speaking.run({"text": text, "seed": 5, "cfg": 3.0})
    assert got.result.finish_reason == "stop"
    assert got.latents.shape == expected.latents.shape
    error = (got.latents - expected.latents).abs()
    print(f"trained checkpoint: {len(got.latents)} patches, latents max {error.max():.2e}")
    assert error.max() < 1e-3  # weights of a trained model amplify rounding more
