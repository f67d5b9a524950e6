"""Clients as they are: the openai package's three ways, and what voice frameworks send."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from tests.helpers.runtime import (
    Server,
    assert_audio_reply,
    decode,
    send_audio_speech_request,
)

pytestmark = [
    pytest.mark.tts,
    pytest.mark.advanced_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

TEXT = "good morning to you."
EXTRA = {"seed": 5, "max_new_tokens": 8}
FRAMEWORKS: dict[str, dict[str, Any]] = {
    "LiveKit": {
        "model": "gpt-4o-mini-tts",
        "voice": "ash",
        "response_format": "mp3",
        "speed": 1.0,
        "instructions": "a calm voice",
    },
    "Pipecat": {"model": "gpt-4o-mini-tts", "voice": "alloy", "response_format": "pcm"},
    "Pipecat at its rate": {
        "model": "gpt-4o-mini-tts",
        "voice": "alloy",
        "response_format": "pcm",
        "sample_rate": 24_000,
    },
    "Open WebUI": {"model": "tts-1", "voice": "alloy"},
    "Home Assistant": {"model": "tts-1-hd", "voice": "shimmer", "speed": 1},
}


@pytest.fixture
def client(speech_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{speech_server.address}/v1", api_key="none") as client:
        yield client


@pytest.fixture(scope="module")
def samples(speech_server: Server) -> np.ndarray:
    request = {"input": TEXT, "voice": "alloy", "response_format": "pcm", **EXTRA}
    return assert_audio_reply(send_audio_speech_request(speech_server, request), request, 16_000)


def test_create(client: openai.OpenAI, samples: np.ndarray) -> None:
    answer = client.audio.speech.create(
        model="tts-1", voice="alloy", input=TEXT, response_format="wav", extra_body=EXTRA
    )
    assert np.array_equal(decode(answer.content, "wav")[0], samples)


def test_streaming_response(client: openai.OpenAI, samples: np.ndarray, tmp_path: Path) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="tiny", voice="alloy", input=TEXT, response_format="pcm", extra_body=EXTRA
    ) as answer:
        rate_hz = int(answer.headers["x-audio-sample-rate"])
        answer.stream_to_file(tmp_path / "out.pcm")
    found, _ = decode((tmp_path / "out.pcm").read_bytes(), "pcm", rate_hz)
    assert np.array_equal(found, samples)


def test_events(client: openai.OpenAI, samples: np.ndarray) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="tts-1",
        voice="alloy",
        input=TEXT,
        response_format="pcm",
        stream_format="sse",
        extra_body=EXTRA,
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    *deltas, done = [json.loads(line.removeprefix("data: ")) for line in lines]
    body = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert np.array_equal(decode(body, "pcm", 16_000)[0], samples)
    assert done["type"] == "speech.audio.done"


def test_the_asynchronous_client(speech_server: Server, samples: np.ndarray) -> None:
    async def scenario() -> bytes:
        base_url = f"{speech_server.address}/v1"
        async with (
            openai.AsyncOpenAI(base_url=base_url, api_key="none") as client,
            client.audio.speech.with_streaming_response.create(
                model="tts-1", voice="alloy", input=TEXT, response_format="pcm", extra_body=EXTRA
            ) as answer,
        ):
            return b"".join([part async for part in answer.iter_bytes()])

    assert np.array_equal(decode(asyncio.run(scenario()), "pcm", 16_000)[0], samples)


def test_errors_are_its_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, speed=9)
    assert caught.value.param == "speed"
    with pytest.raises(openai.NotFoundError) as missing:
        client.audio.speech.create(model="llama", voice="alloy", input=TEXT)
    assert missing.value.code == "model_not_found"


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


@pytest.mark.parametrize("name", list(FRAMEWORKS))
def test_a_framework(speech_server: Server, name: str) -> None:
    request = {"input": TEXT, "max_new_tokens": 4, **FRAMEWORKS[name]}
    reply = send_audio_speech_request(speech_server, request)
    assert_audio_reply(reply, request, 16_000)
    assert reply.headers["transfer-encoding"] == "chunked"
