"""Bodies: what OpenAI's clients send passes, everything else names its field."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from voxnative.serving.schema import BatchBody, SpeechBody

# What clients send as they are.
CLIENTS: dict[str, dict[str, Any]] = {
    "openai": {"model": "gpt-4o-mini-tts", "input": "hi", "voice": "coral", "instructions": "calm"},
    "openai with an id": {"model": "tts-1", "input": "hi", "voice": {"id": "voice_12"}},
    "livekit": {
        "input": "hi",
        "model": "gpt-4o-mini-tts",
        "voice": "ash",
        "response_format": "mp3",
        "speed": 1.0,
    },
    "pipecat": {
        "input": "hi",
        "model": "gpt-4o-mini-tts",
        "voice": "alloy",
        "response_format": "pcm",
    },
    "open webui": {"model": "tts-1", "input": "hi", "voice": "alloy"},
    "home assistant": {
        "model": "gpt-4o-mini-tts",
        "voice": "marin",
        "input": "hi",
        "instructions": "",
        "speed": 1,
        "response_format": "mp3",
    },
}

BAD: list[tuple[str, Any]] = [
    ("input", ""),
    ("input", "x" * 4097),
    ("input", None),
    ("input", 7),
    ("input", "\ud800"),
    ("model", 3),
    ("lora", 3),
    ("lora", ""),
    ("voice", 3),
    ("voice", ""),
    ("voice", {"id": 3}),
    ("voice", {"name": "x"}),
    ("voice", {"id": "x", "more": 1}),
    ("instructions", ["calm"]),
    ("max_silence_s", "long"),
    ("normalize", "yes"),
    ("response_format", "ogg"),
    ("response_format", 1),
    ("speed", 0.24),
    ("speed", 4.01),
    ("speed", "1"),
    ("speed", True),
    ("speed", float("nan")),
    ("stream_format", "websocket"),
    ("seed", "1"),
    ("seed", 1.5),
    ("seed", True),
    ("cfg_value", "2"),
    ("cfg_value", float("inf")),
    ("inference_timesteps", 10.5),
    ("temperature", "hot"),
    ("max_new_tokens", "many"),
    ("ref_audio", 5),
    ("ref_text", 5),
    ("sample_rate", 7_999),
    ("sample_rate", 48_001),
    ("sample_rate", 24_000.5),
    ("stream", "yes"),
    ("stream", 1),
    ("colour", "red"),
]


@pytest.mark.parametrize("client", list(CLIENTS))
def test_clients_as_they_are(client: str) -> None:
    assert SpeechBody(**CLIENTS[client]).input == "hi"


def test_defaults() -> None:
    body = SpeechBody(input="hi")
    assert (body.response_format, body.speed, body.stream_format) == ("mp3", 1.0, "audio")
    assert body.stream is None
    assert body.voice is None


def test_both_forms_of_a_voice() -> None:
    assert SpeechBody(input="hi", voice="alloy").voice == "alloy"
    assert SpeechBody(input="hi", voice={"id": "voice_1"}).voice == "voice_1"


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda value: repr(value)[:20])
def test_bad_values_name_their_field(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        SpeechBody(**{"input": "hi", name: value})
    assert caught.value.errors()[0]["loc"][0] == name


def test_every_field_has_a_bad_value() -> None:
    assert {name for name, _ in BAD} >= set(SpeechBody.model_fields)


def test_batch_items_take_what_they_leave_out() -> None:
    batch = BatchBody(
        items=[{"input": "a"}, {"input": "b", "seed": 2, "voice": "nova"}],
        seed=1,
        response_format="wav",
    )
    first, second = batch.bodies()
    assert (first.input, first.seed, first.voice, first.response_format) == ("a", 1, None, "wav")
    assert (second.input, second.seed, second.voice) == ("b", 2, "nova")
    assert first.stream is False


@pytest.mark.parametrize(
    ("change", "location"),
    [
        ({"items": []}, ("items",)),
        ({"items": [{"input": "a"}] * 33}, ("items",)),
        ({"items": [{"input": "a"}, {"input": ""}]}, ("items", 1, "input")),
        ({"items": [{"input": "a", "speed": 2.0}]}, ("items", 0, "speed")),
        ({"stream": True}, ("stream",)),
    ],
)
def test_bad_batches_name_their_field(change: dict[str, Any], location: tuple[Any, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        BatchBody(**{"items": [{"input": "a"}], **change})
    assert caught.value.errors()[0]["loc"] == location
