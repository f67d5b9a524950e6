"""Messages of the WebSocket: what is accepted, and how every other one is named."""

from __future__ import annotations

import base64
import json

import pytest

from voxnative.errors import InvalidRequestError
from voxnative.serving.formats.registry import FORMATS
from voxnative.serving.http_errors import RequestFailed, engine_dead, queue_full, timed_out
from voxnative.serving.pipeline import Answer
from voxnative.serving.websocket_protocol import (
    ClauseEvents,
    InputDone,
    InputText,
    SessionConfig,
    close_code,
    error_event,
    parse_message,
    session_done,
)


def test_the_three_messages() -> None:
    config = parse_message('{"type": "session.config", "voice": {"id": "alloy"}, "speed": 2}')
    assert isinstance(config, SessionConfig)
    assert (config.voice, config.speed, config.response_format) == ("alloy", 2.0, "pcm")
    text = parse_message('{"type": "input.text", "text": " 你好"}')
    assert isinstance(text, InputText)
    assert text.text == " 你好"
    assert isinstance(parse_message('{"type": "input.done"}'), InputDone)


@pytest.mark.parametrize(
    ("message", "field", "valid"),
    [
        ("", "message", "JSON"),
        ("{", "message", "JSON"),
        ("[]", "message", "object"),
        ("{}", "type", "session.config, input.text or input.done"),
        ({"type": "input.audio"}, "type", "session.config, input.text or input.done"),
        ({"type": 7}, "type", "session.config, input.text or input.done"),
        ({"type": "input.text"}, "text", "required"),
        ({"type": "input.text", "text": 7}, "text", "string"),
        ({"type": "input.text", "text": "a" * 4097}, "text", "4096"),
        ({"type": "input.text", "text": "a", "voice": "alloy"}, "voice", "no such field"),
        ({"type": "input.done", "text": "a"}, "text", "no such field"),
        ({"type": "session.config", "input": "a"}, "input", "no such field"),
        ({"type": "session.config", "voice": ""}, "voice", "at least 1"),
        ({"type": "session.config", "voice": {"name": "a"}}, "voice", "object with its id"),
        ({"type": "session.config", "response_format": "mp4"}, "response_format", "'mp3'"),
        ({"type": "session.config", "speed": 5}, "speed", "less than or equal to 4"),
        ({"type": "session.config", "speed": "fast"}, "speed", "number"),
        ({"type": "session.config", "sample_rate": 100}, "sample_rate", "8000"),
        ({"type": "session.config", "audio_frames": "hex"}, "audio_frames", "'base64'"),
        ({"type": "session.config", "seed": 1.5}, "seed", "integer"),
    ],
)
def test_bad_messages_are_named(message: object, field: str, valid: str) -> None:
    frame = message if isinstance(message, str) else json.dumps(message)
    with pytest.raises(InvalidRequestError) as caught:
        parse_message(frame)
    assert caught.value.field == field
    assert valid in caught.value.valid
    assert len(str(caught.value)) < 400


def test_a_binary_frame_is_no_message() -> None:
    with pytest.raises(InvalidRequestError, match="JSON in a text frame"):
        parse_message(None)


def test_a_configuration_becomes_a_request_that_streams() -> None:
    config = parse_message(
        json.dumps(
            {
                "type": "session.config",
                "voice": "nova",
                "response_format": "wav",
                "seed": 7,
                "cfg_value": 1.5,
                "sample_rate": 24_000,
            }
        )
    )
    assert isinstance(config, SessionConfig)
    body = config.body("Hello.")
    assert body.model_dump(exclude_none=True) == {
        "input": "Hello.",
        "voice": "nova",
        "seed": 7,
        "cfg_value": 1.5,
        "response_format": "wav",
        "speed": 1.0,
        "stream_format": "audio",
        "sample_rate": 24_000,
        "stream": True,
    }


def test_the_events_of_a_clause() -> None:
    answer = Answer(FORMATS["pcm"], model_hz=48_000, rate_hz=24_000, speed=1.0, streams=True)
    events = ClauseEvents(3, "Hello.", answer)
    assert events.start() == {
        "type": "audio.start",
        "sentence_index": 3,
        "sentence_text": "Hello.",
        "format": "pcm",
        "encoding": FORMATS["pcm"].encoding,
        "sample_rate": 24_000,
        "channels": 1,
    }
    delta = events.delta(b"\x00\x01\xff")
    assert (delta["type"], delta["sentence_index"]) == ("audio.delta", 3)
    assert base64.b64decode(delta["audio"]) == b"\x00\x01\xff"
    assert events.done(90, "stop") == {
        "type": "audio.done",
        "sentence_index": 3,
        "n_bytes": 90,
        "finish_reason": "stop",
    }
    assert session_done(4) == {"type": "session.done", "total_sentences": 4}


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (queue_full(3), 1013),
        (engine_dead(), 1013),
        (timed_out(9), 1011),
        (RequestFailed(400, "invalid_request_error", "invalid_value", "no"), 1008),
        (RequestFailed(413, "invalid_request_error", "too_large", "no"), 1008),
    ],
)
def test_errors_have_openais_shape_and_a_code(failure: RequestFailed, code: int) -> None:
    event = error_event(failure)
    assert event["type"] == "error"
    assert set(event["error"]) == {"message", "type", "param", "code"}
    assert close_code(failure) == code
