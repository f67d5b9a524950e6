"""Server-sent events in OpenAI's form."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.unit.serving.scripted import CHUNK_SAMPLES, Scripted, ScriptedSpeech
from voxnative.serving import speech

REQUEST = {"input": "hi", "response_format": "pcm", "stream_format": "sse"}


def events(scripted: Scripted, **fields: Any) -> list[dict[str, Any]]:
    app = FastAPI()
    app.include_router(speech.router)
    app.state.voxnative = scripted.server
    answer = TestClient(app).post("/v1/audio/speech", json={**REQUEST, **fields})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *blocks, rest = answer.text.split("\n\n")
    assert rest == ""
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def n_samples(deltas: list[dict[str, Any]]) -> int:
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    body = b"".join(base64.b64decode(event["audio"]) for event in deltas)
    return len(np.frombuffer(body, "<i2"))


def test_deltas_then_done() -> None:
    """Four chunks, in fewer deltas where some have come while one was sent."""
    *deltas, done = events(Scripted())
    assert 1 <= len(deltas) <= 4
    assert n_samples(deltas) == 4 * CHUNK_SAMPLES
    assert done == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
        "finish_reason": "stop",
    }


def test_an_error_after_the_first_audio_is_an_event() -> None:
    first, *_, last = events(Scripted(ScriptedSpeech(fails_at=2, pause_s=0.01)))
    assert first["type"] == "speech.audio.delta"
    assert last["type"] == "speech.audio.error"
    assert last["error"]["code"] == "engine_error"


def test_false_stream_does_not_hold_events_back() -> None:
    *deltas, done = events(Scripted(ScriptedSpeech(pause_s=0.01)), stream=False)
    assert len(deltas) > 1
    assert n_samples(deltas) == 4 * CHUNK_SAMPLES
    assert done["type"] == "speech.audio.done"
