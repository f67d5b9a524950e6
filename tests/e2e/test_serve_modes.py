"""Every prompt mode over HTTP, mixed in one batch.

The samples are those that each mode gets alone, and (long tail, since it starts a second engine)
those of the offline API.
"""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.e2e.test_serve_voices import registered
from tests.engines import RecordingEngine
from tests.helpers.runtime import Server, assert_audio_reply, recording, send_many

pytestmark = [
    pytest.mark.tts,
    pytest.mark.advanced_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

MODEL_HZ = 16_000
N_PATCHES = 6
# Whole patches without silence, so that registering the first trims nothing.
VOICE, PROMPT = recording(1.28, 140), recording(0.96, 190)
PROMPT_TEXT = "so it was said, "
DESCRIPTION = "a calm, low voice"


def samples(wav: bytes) -> tuple[np.ndarray, int]:
    return soundfile.read(io.BytesIO(wav), dtype="float32")


def url(wav: bytes) -> str:
    return "data:audio/wav;base64," + base64.b64encode(wav).decode()


# Fields of the body beside arguments of the offline API, for each mode.
MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "zero-shot": ({}, {}),
    "voice design": ({"instructions": DESCRIPTION}, {"description": DESCRIPTION}),
    "reference": ({"ref_audio": url(VOICE)}, {"reference": samples(VOICE)}),
    "registered voice": ({"voice": "Anna"}, {"reference": samples(VOICE)}),
    "described reference": (
        {"ref_audio": url(VOICE), "instructions": DESCRIPTION},
        {"reference": samples(VOICE), "description": DESCRIPTION},
    ),
    "continuation": (
        {"ref_audio": url(PROMPT), "ref_text": PROMPT_TEXT},
        {"prompt": samples(PROMPT), "prompt_text": PROMPT_TEXT},
    ),
    "both": (
        {"voice": "Anna", "ref_audio": url(PROMPT), "ref_text": PROMPT_TEXT},
        {
            "reference": samples(VOICE),
            "prompt": samples(PROMPT),
            "prompt_text": PROMPT_TEXT,
        },
    ),
}


SHARED = {"inference_timesteps": 5, "max_new_tokens": N_PATCHES, "response_format": "pcm"}
BODIES = {
    mode: {"input": f"number {index} is spoken.", "seed": index, **SHARED, **fields}
    for index, (mode, (fields, _)) in enumerate(MODES.items())
}


@pytest.fixture(scope="module")
def mixed(speech_server: Server) -> dict[str, np.ndarray]:
    """What each mode gets while all are sent at once."""
    with registered(speech_server, VOICE):
        replies = asyncio.run(send_many(speech_server, list(BODIES.values())))
    return {
        mode: assert_audio_reply(reply, body, MODEL_HZ)
        for (mode, body), reply in zip(BODIES.items(), replies, strict=True)
    }


def check_equal(mode: str, samples: np.ndarray, others: np.ndarray) -> None:
    assert len(samples) == len(others), mode
    difference = np.abs(samples - others).max()
    print(f"{mode}: differ by {difference:.1e}")
    # Rounding to 16 bits, and GEMMs of another batch composition.
    assert difference < 1 / 32768 + 1e-4, mode


def test_modes_mixed_in_one_batch_equal_each_alone(
    speech_server: Server, mixed: dict[str, np.ndarray]
) -> None:
    with registered(speech_server, VOICE):
        for mode, body in BODIES.items():
            (reply,) = asyncio.run(send_many(speech_server, [body]))
            check_equal(mode, mixed[mode], assert_audio_reply(reply, body, MODEL_HZ))


@pytest.mark.full_model
def test_modes_mixed_in_one_batch_equal_offline(
    mixed: dict[str, np.ndarray], speaking: RecordingEngine
) -> None:
    offline = speaking.run(
        *(
            {
                "text": BODIES[mode]["input"],
                "seed": BODIES[mode]["seed"],
                "timesteps": 5,
                "max_steps": N_PATCHES,
                **arguments,
            }
            for mode, (_, arguments) in MODES.items()
        )
    )
    assert max(max(run.batch_sizes) for run in offline) > len(MODES) // 2, "they hardly met"
    for mode, run in zip(MODES, offline, strict=True):
        check_equal(mode, mixed[mode], run.result.samples)


def test_each_mode_sounds_different(mixed: dict[str, np.ndarray]) -> None:
    n = N_PATCHES * 1000
    for mode in ("voice design", "reference", "continuation", "both"):
        assert np.abs(mixed[mode][:n] - mixed["zero-shot"][:n]).max() > 0.01, mode
