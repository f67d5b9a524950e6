"""The whole generation loop through vLLM's engine against the reference implementation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.checkpoints import write_checkpoint
from tests.engines import RecordingEngine
from tests.reference import reference_generate

N_STEPS = 48
TOLERANCE = 1e-4
# Of latents in modes that the trained checkpoint never saw: they amplify rounding from patch to
# patch, to 1e-5 to 5e-4 after ten patches with three seeds.
UNSEEN_TOLERANCE = 1e-3
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
    assert error.max() < TOLERANCE


DESCRIPTION = "a calm, low voice"


@pytest.mark.parametrize("mode", ["reference", "voice design"])
def test_a_voice_of_the_trained_checkpoint(
    mode: str, speaking: RecordingEngine, voice: Callable[[int, float], np.ndarray]
) -> None:
    text = "the weather is very nice today."
    settings: dict[str, Any] = {"seed": 6, "cfg": 3.0, "timesteps": 5}
    arguments: dict[str, Any] = {}
    call: dict[str, Any] = {"description": DESCRIPTION}
    spoken = f"({DESCRIPTION}){text}"
    if mode != "voice design":
        arguments = recordings(mode, voice)
        call, spoken = with_rate(arguments), text
    expected = reference_generate(speaking.directory, spoken, n_steps=10, **settings, **arguments)
    (got,) = speaking.run({"text": text, "max_steps": 10, "min_steps": 10, **settings, **call})
    error = (got.latents - expected.latents).abs()
    audio_error = (torch.from_numpy(got.result.samples) - expected.audio).abs()
    print(f"trained, {mode}: latents max {error.max():.2e}, audio max {audio_error.max():.2e}")
    assert error.max() < UNSEEN_TOLERANCE
    assert audio_error.max() < TOLERANCE


VARIANTS: dict[str, dict[str, Any]] = {
    "muP, RoPE everywhere, dense VAE, bf16 weights": {
        "use_mup": True,
        "no_rope": False,
        "depthwise": False,
        "dtype": torch.bfloat16,
        "lm_file": "bin",
        "lm_config": {"rope_scaling": {"original_max_position_embeddings": 512}},
    }
}


@pytest.mark.full_model
@pytest.mark.parametrize("variant", VARIANTS)
def test_other_switches_of_the_configuration(
    variant: str, tmp_path: Path, voice: Callable[[int, float], np.ndarray]
) -> None:
    directory = write_checkpoint(tmp_path / "variant", **VARIANTS[variant])
    arguments = recordings("both", voice)
    expected = reference_generate(directory, TEXT, seed=3, n_steps=N_STEPS, cfg=2.0, **arguments)
    engine = RecordingEngine(directory, max_num_seqs=2)
    try:
        call = {"text": TEXT, "seed": 3, "cfg": 2.0, "max_steps": N_STEPS}
        (got,) = engine.run(call | with_rate(arguments))
    finally:
        engine.api.close()
    error = (got.latents - expected.latents).abs().max()
    print(f"{variant}: latents max {error:.2e}")
    assert error < TOLERANCE
