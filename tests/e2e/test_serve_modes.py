"""Every prompt mode over HTTP, mixed in one batch: the samples are those of the offline API."""

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


def test_modes_mixed_in_one_batch_equal_offline(
    speech_server: Server, speaking: RecordingEngine
) -> None:
    texts = {mode: f"number {index} is spoken." for index, mode in enumerate(MODES)}
    shared = {"inference_timesteps": 5, "max_new_tokens": N_PATCHES, "response_format": "pcm"}
    bodies = [
        {"input": texts[mode], "seed": index, **shared, **fields}
        for index, (mode, (fields, _)) in enumerate(MODES.items())
    ]
    calls = [
        {"text": texts[mode], "seed": index, "timesteps": 5, "max_steps": N_PATCHES, **arguments}
        for index, (mode, (_, arguments)) in enumerate(MODES.items())
    ]
    with registered(speech_server, VOICE):
        replies = asyncio.run(send_many(speech_server, bodies))
    offline = speaking.run(*calls)
    assert max(max(run.batch_sizes) for run in offline) > len(MODES) // 2, "they hardly met"
    heard = {}
    for mode, body, reply, run in zip(MODES, bodies, replies, offline, strict=True):
        online = heard[mode] = assert_audio_reply(reply, body, MODEL_HZ)
        assert len(online) == len(run.result.samples), mode
        difference = np.abs(online - run.result.samples).max()
        print(f"{mode}: online and offline differ by {difference:.1e}")
        # Rounding to 16 bits, and GEMMs of another batch composition.
        assert difference < 1 / 32768 + 1e-4, mode
    n = N_PATCHES * 1000
    for mode in ("voice design", "reference", "continuation", "both"):
        assert np.abs(heard[mode][:n] - heard["zero-shot"][:n]).max() > 0.01, mode
