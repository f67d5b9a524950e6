"""Long inputs and the guards over HTTP: pieces behind one answer, and why each speech ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.hearing import heard_words
from tests.helpers.runtime import (
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

MODEL_HZ = 16_000
SENTENCE = "the weather is very nice today. "
PAUSES = "yes. no. we will go. good morning."
SHORT = {"input": "yes.", "seed": 1, "cfg_value": 3.0, "response_format": "pcm"}


def done_event(server: Server, request: dict[str, Any]) -> dict[str, Any]:
    reply = send_audio_speech_request(server, {**request, "stream_format": "sse"})
    last = reply.events()[-1]
    assert last["type"] == "speech.audio.done"
    return last


@pytest.mark.full_model
def test_an_input_beyond_the_context_is_spoken(speech_server: Server) -> None:
    """600 characters, where the context holds 512; the cap is that of the whole answer."""
    request = {**SHORT, "input": SENTENCE * 19, "max_new_tokens": 60}
    reply = send_audio_speech_request(speech_server, request)
    samples = assert_audio_reply(reply, request, MODEL_HZ)
    assert len(samples) == 60 * 2560
    assert len(reply.pieces) > 10  # as it is made
    assert heard_words(samples, MODEL_HZ) >= {"weather", "nice", "today"}


def test_the_reason_is_in_the_last_event_and_in_the_metrics(speech_server: Server) -> None:
    endings = {
        "stop": {},
        "length": {"max_new_tokens": 3},
        "silence": {"input": PAUSES, "max_silence_s": 0.05},
    }
    for reason, fields in endings.items():
        before = speech_server.metric("voxnative_finish_reasons_total", reason=reason)
        assert done_event(speech_server, {**SHORT, **fields})["finish_reason"] == reason
        after = speech_server.metric("voxnative_finish_reasons_total", reason=reason)
        assert after == before + 1


def test_a_whole_answer_says_it_in_a_header(speech_server: Server) -> None:
    request = {**SHORT, "response_format": "wav", "max_new_tokens": 3}
    reply = send_audio_speech_request(speech_server, request)
    assert reply.headers["x-finish-reason"] == "length"


def test_a_batch_says_it_for_each_item(speech_server: Server) -> None:
    request = {
        "items": [{"input": "yes."}, {"input": "no.", "max_new_tokens": 3}],
        "seed": 1,
        "cfg_value": 3.0,
        "response_format": "wav",
    }
    reply = send_audio_speech_request(speech_server, request, "/v1/audio/speech/batch")
    results = json.loads(reply.body)["results"]
    assert [result["finish_reason"] for result in results] == ["stop", "length"]


@pytest.mark.parametrize("text", ["...", "?!", "- - -\n" * 100])
def test_nothing_to_say(speech_server: Server, text: str) -> None:
    reply = send_audio_speech_request(speech_server, {**SHORT, "input": text})
    assert_refused(reply, 400, "input")


@pytest.mark.parametrize("text", ["Tak.", "7", "😀"])
def test_very_short_inputs_are_spoken(speech_server: Server, text: str) -> None:
    request = {**SHORT, "input": text}
    samples = assert_audio_reply(
        send_audio_speech_request(speech_server, request), request, MODEL_HZ
    )
    assert 0.3 < len(samples) / MODEL_HZ < 4
