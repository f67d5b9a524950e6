"""Bad requests: a clear answer that names the field, nothing in the engine, nothing in the log."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.helpers.runtime import (
    SPEECH,
    Server,
    assert_audio_reply,
    assert_refused,
    send_audio_speech_request,
)

pytestmark = [
    pytest.mark.tts,
    pytest.mark.advanced_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

SECRET = "marmalade zanzibar"
GOOD: dict[str, Any] = {"input": SECRET, "response_format": "pcm"}


def wav(seconds: float, level: float = 0.1, rate_hz: int = 16_000) -> bytes:
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    file = io.BytesIO()
    soundfile.write(file, level * np.sin(2 * np.pi * 200 * t), rate_hz, format="WAV")
    return file.getvalue()


def data_url(content: bytes) -> str:
    return f"data:audio/wav;base64,{base64.b64encode(content).decode()}"


RECORDING = data_url(wav(1.5))
# Every field of the schema with values that it refuses: (fields, status, named field).
BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"input": ""}, 400, "input"),
    ({"input": " \n\t "}, 400, "input"),
    ({"input": "x" * 4097}, 400, "input"),
    ({"input": ["a"]}, 400, "input"),
    ({"input": "...?!"}, 400, "input"),  # nothing to say
    ({"instructions": "calm " * 200}, 400, "input"),  # no room left in the context
    ({"model": "gpt-9"}, 404, "model"),
    ({"lora": "nobody"}, 400, "lora"),
    ({"lora": 5}, 400, "lora"),
    ({"model": 5}, 400, "model"),
    ({"voice": "no such voice"}, 400, "voice"),
    ({"voice": {"id": "voice_0"}}, 400, "voice"),
    ({"voice": "../../etc/passwd"}, 400, "voice"),
    ({"voice": ["alloy"]}, 400, "voice"),
    ({"instructions": 1}, 400, "instructions"),
    ({"instructions": "calm", "ref_audio": RECORDING, "ref_text": "a"}, 400, "instructions"),
    ({"response_format": "ogg"}, 400, "response_format"),
    ({"speed": 0.2}, 400, "speed"),
    ({"speed": 5}, 400, "speed"),
    ({"speed": "fast"}, 400, "speed"),
    ({"stream_format": "ws"}, 400, "stream_format"),
    ({"stream": "no"}, 400, "stream"),
    ({"seed": -1}, 400, "seed"),
    ({"seed": 2**63}, 400, "seed"),
    ({"seed": 1.5}, 400, "seed"),
    ({"cfg_value": -0.1}, 400, "cfg_value"),
    ({"cfg_value": 11}, 400, "cfg_value"),
    ({"inference_timesteps": 1}, 400, "inference_timesteps"),
    ({"inference_timesteps": 101}, 400, "inference_timesteps"),
    ({"temperature": 2.5}, 400, "temperature"),
    ({"temperature": -1}, 400, "temperature"),
    ({"max_silence_s": -1.0}, 400, "max_silence_s"),
    ({"normalize": "yes"}, 400, "normalize"),
    ({"max_new_tokens": 0}, 400, "max_new_tokens"),
    ({"max_new_tokens": 10**6}, 400, "max_new_tokens"),
    ({"sample_rate": 4_000}, 400, "sample_rate"),
    ({"sample_rate": 44_100, "response_format": "opus"}, 400, "sample_rate"),
    ({"ref_text": "alone"}, 400, "ref_text"),
    ({"ref_audio": "", "ref_text": "a"}, 400, "ref_audio"),
    ({"ref_audio": "data:audio/wav;base64,%%%"}, 400, "ref_audio"),
    ({"ref_audio": data_url(b"no recording at all")}, 415, "ref_audio"),
    ({"ref_audio": data_url(wav(31))}, 400, "ref_audio"),
    ({"ref_audio": data_url(wav(1, level=0))}, 400, "ref_audio"),
    ({"ref_audio": data_url(bytes(10_100_000))}, 413, "ref_audio"),
    ({"ref_audio": "/etc/passwd"}, 400, "ref_audio"),
    ({"ref_audio": "file:///etc/passwd"}, 400, "ref_audio"),
    ({"ref_audio": "http://127.0.0.1:1/a.wav"}, 400, "ref_audio"),
    ({"ref_audio": "http://[::1]/a.wav"}, 400, "ref_audio"),
    ({"colour": "red"}, 400, "colour"),
]


@pytest.fixture
def nothing_reaches_the_engine(speech_server: Server) -> Iterator[None]:
    """Around a bad request: the engine's counters stand still, the log stays clean."""
    counters = (
        "voxnative_requests_total",
        "voxnative_queue_seconds_count",
        "vllm:prompt_tokens_total",
    )
    before = [speech_server.metric(name) for name in counters]
    yield
    assert [speech_server.metric(name) for name in counters] == before
    log = speech_server.log.read_text()
    assert SECRET not in log
    assert RECORDING[30:90] not in log


@pytest.mark.usefixtures("nothing_reaches_the_engine")
@pytest.mark.parametrize(
    ("fields", "status", "param"), BAD, ids=lambda value: str(value)[:40].replace("\n", " ")
)
def test_a_bad_value(speech_server: Server, fields: dict, status: int, param: str) -> None:
    assert_refused(send_audio_speech_request(speech_server, {**GOOD, **fields}), status, param)


def test_every_field_is_tested() -> None:
    from voxnative.serving.schema import SpeechBody

    assert {param for *_, param in BAD} >= set(SpeechBody.model_fields)


def test_a_body_that_is_too_large(speech_server: Server) -> None:
    reply = send_audio_speech_request(speech_server, {"input": "x" * 15_000_000})
    assert_refused(reply, 413, None)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"text"', b"\xff\xff", b"null"])
def test_no_json_object(speech_server: Server, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(speech_server.address + SPEECH, content=content, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] is None


def test_good_requests_are_not_logged_either(speech_server: Server) -> None:
    request = {**GOOD, "ref_audio": RECORDING, "max_new_tokens": 3}
    assert_audio_reply(send_audio_speech_request(speech_server, request), request, 16_000)
    log = speech_server.log.read_text()
    assert SECRET not in log
    assert RECORDING[30:90] not in log
