"""``/v1/audio/speech/stream``: clauses are spoken while the text is still being written."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from tests.hearing import heard_words
from tests.helpers.runtime import (
    ANSWER_S,
    Server,
    SocketReply,
    assert_audio_reply,
    decode,
    open_websocket,
    send_audio_speech_request,
    send_over_websocket,
)

pytestmark = [
    pytest.mark.tts,
    pytest.mark.advanced_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

MODEL_HZ = 16_000
SETTLE_S = 10
CONFIG = {"type": "session.config", "seed": 1, "cfg_value": 3.0}
DONE = {"type": "input.done"}
# As a language model writes it: pieces that end anywhere.
PIECES = ("the wea", "ther is very", " nice today. ", "we will", " go for a walk", " in the park.")
CLAUSES = ["the weather is very nice today.", "we will go for a walk in the park."]
WORDS = {"weather", "very", "nice", "today", "walk"}


def text(piece: str) -> dict[str, str]:
    return {"type": "input.text", "text": piece}


def session(server: Server, *pieces: str, **config: Any) -> SocketReply:
    """A whole session that ends well."""
    reply = send_over_websocket(server, [CONFIG | config, *map(text, pieces), DONE])
    assert reply.close_code == 1000, reply.events[-1]
    assert reply.events[-1] == {"type": "session.done", "total_sentences": len(reply.audio)}
    assert reply.of_type("error") == []
    return reply


def samples_of(reply: SocketReply, response_format: str = "pcm") -> list[np.ndarray]:
    """Float32 [n] of each clause; checks the rate that was announced."""
    starts = reply.of_type("audio.start")
    decoded = [
        decode(audio, response_format, start["sample_rate"])
        for audio, start in zip(reply.audio, starts, strict=True)
    ]
    assert [rate for _, rate in decoded] == [start["sample_rate"] for start in starts]
    return [samples for samples, _ in decoded]


@pytest.fixture(scope="module")
def plain(speech_server: Server) -> SocketReply:
    return session(speech_server, *PIECES)


def test_every_clause_is_announced_spoken_and_closed(plain: SocketReply) -> None:
    kinds = [event["type"] for event in plain.events]
    assert kinds == ["audio.start", "audio.done"] * len(CLAUSES) + ["session.done"]
    starts = plain.of_type("audio.start")
    assert [start["sentence_text"] for start in starts] == CLAUSES
    for start in starts:
        assert (start["format"], start["encoding"]) == ("pcm", "s16le")
        assert (start["sample_rate"], start["channels"]) == (MODEL_HZ, 1)


def test_the_words_are_heard(plain: SocketReply) -> None:
    heard = heard_words(np.concatenate(samples_of(plain)), MODEL_HZ)
    assert len(WORDS & heard) >= 3


def test_a_clause_sounds_as_over_http(speech_server: Server, plain: SocketReply) -> None:
    fields = {key: value for key, value in CONFIG.items() if key != "type"}
    for clause, samples in zip(CLAUSES, samples_of(plain), strict=True):
        request = {"input": clause, "response_format": "pcm", **fields}
        reply = send_audio_speech_request(speech_server, request)
        np.testing.assert_allclose(
            samples, assert_audio_reply(reply, request, MODEL_HZ), atol=2 / 32768
        )


def test_speech_starts_at_the_first_clause(speech_server: Server) -> None:
    """The rest of the text is not even sent before the first clause was heard."""
    reply = SocketReply()
    with open_websocket(speech_server) as socket:
        socket.send(json.dumps(CONFIG))
        socket.send(json.dumps(text("the weather is very nice today. and")))
        while reply.add(socket.recv(timeout=ANSWER_S)) != "audio.done":
            pass
        assert len(reply.audio[0]) > MODEL_HZ  # half a second
        socket.send(json.dumps(text(" so are you.")))
        socket.send(json.dumps(DONE))
        while reply.add(socket.recv(timeout=ANSWER_S)) != "session.done":
            pass
    starts = reply.of_type("audio.start")
    assert [start["sentence_text"] for start in starts] == [CLAUSES[0], "and so are you."]


def test_the_audio_of_a_clause_comes_as_it_is_made(speech_server: Server) -> None:
    times = []
    with open_websocket(speech_server) as socket:
        for message in (CONFIG, text("the weather is very nice today."), DONE):
            socket.send(json.dumps(message))
        while isinstance(frame := socket.recv(timeout=ANSWER_S), bytes) or not times:
            if isinstance(frame, bytes):
                times.append(time.perf_counter())
    assert len(times) > 5
    assert times[-1] - times[0] > 0.1  # not all at the end


@pytest.mark.parametrize("response_format", ["wav", "mp3", "opus", "aac", "flac"])
def test_other_formats(speech_server: Server, plain: SocketReply, response_format: str) -> None:
    reply = session(speech_server, *PIECES, response_format=response_format)
    assert [start["format"] for start in reply.of_type("audio.start")] == [response_format] * 2
    lengths = [
        len(samples) / start["sample_rate"]
        for samples, start in zip(
            samples_of(reply, response_format), reply.of_type("audio.start"), strict=True
        )
    ]
    expected = [len(samples) / MODEL_HZ for samples in samples_of(plain)]
    assert lengths == pytest.approx(expected, abs=0.03)


def test_another_rate_is_announced_and_kept(speech_server: Server, plain: SocketReply) -> None:
    reply = session(speech_server, *PIECES, sample_rate=24_000)
    assert {start["sample_rate"] for start in reply.of_type("audio.start")} == {24_000}
    for samples, native in zip(samples_of(reply), samples_of(plain), strict=True):
        assert len(samples) / 24_000 == pytest.approx(len(native) / MODEL_HZ, abs=0.03)


def test_speed(speech_server: Server, plain: SocketReply) -> None:
    reply = session(speech_server, *PIECES, speed=2.0)
    for samples, native in zip(samples_of(reply), samples_of(plain), strict=True):
        assert len(samples) == pytest.approx(len(native) / 2, rel=0.1)


def test_base64_holds_the_same_audio(speech_server: Server, plain: SocketReply) -> None:
    reply = session(speech_server, *PIECES, audio_frames="base64")
    assert len(reply.of_type("audio.delta")) > len(CLAUSES)
    for samples, binary in zip(samples_of(reply), samples_of(plain), strict=True):
        np.testing.assert_allclose(samples, binary, atol=2 / 32768)


def test_sessions_at_once_get_what_they_get_alone(
    speech_server: Server, plain: SocketReply
) -> None:
    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda _: session(speech_server, *PIECES), range(6)))
    for reply in replies:
        for samples, alone in zip(samples_of(reply), samples_of(plain), strict=True):
            np.testing.assert_allclose(samples, alone, atol=1e-3)


def test_a_session_without_configuration(speech_server: Server) -> None:
    reply = send_over_websocket(speech_server, [text("hello there."), DONE])
    assert reply.close_code == 1000
    assert len(reply.audio) == 1


@pytest.mark.parametrize("pieces", [(), ("",), (" \n ", "...", "!?")])
def test_a_text_with_nothing_to_speak(speech_server: Server, pieces: tuple[str, ...]) -> None:
    assert session(speech_server, *pieces).audio == []


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (["no JSON"], "message"),
        ([b"\x00\x01"], "message"),
        ([{"type": "session.start"}], "type"),
        ([CONFIG, CONFIG], "type"),
        ([text("hello there"), CONFIG], "type"),
        ([CONFIG, DONE, text("hello")], "type"),
        ([CONFIG, DONE, DONE], "type"),
        ([{"type": "input.text"}], "text"),
        ([text("a" * 4097)], "text"),
        ([CONFIG, *[text("a " * 2000)] * 12], "text"),
        ([CONFIG | {"voice": "nobody"}], "voice"),
        ([CONFIG | {"response_format": "mp4"}], "response_format"),
        ([CONFIG | {"speed": 9}], "speed"),
        ([CONFIG | {"cfg_value": 99.0}], "cfg_value"),
        ([CONFIG | {"inference_timesteps": 1}], "inference_timesteps"),
        ([CONFIG | {"sample_rate": 96_000}], "sample_rate"),
        ([CONFIG | {"ref_audio": "file:///etc/passwd"}], "ref_audio"),
        ([CONFIG | {"ref_audio": "http://127.0.0.1/voice.wav"}], "ref_audio"),
        ([CONFIG | {"model": "another"}], "model"),
    ],
)
def test_a_bad_message_ends_the_session(
    speech_server: Server, messages: list[Any], param: str
) -> None:
    reply = send_over_websocket(speech_server, messages)
    (error,) = reply.of_type("error")
    assert reply.events[-1] == error
    assert set(error["error"]) == {"message", "type", "param", "code"}
    assert error["error"]["param"] == param
    assert reply.close_code == 1008


def test_a_client_that_goes_away_aborts_its_request(speech_server: Server) -> None:
    aborted = speech_server.metric("voxnative_requests_total", outcome="aborted")
    with open_websocket(speech_server) as socket:
        for message in (CONFIG, text("a " * 200 + ". "), DONE):
            socket.send(json.dumps(message))
        while not isinstance(socket.recv(timeout=ANSWER_S), bytes):
            pass
        socket.socket.close()  # no closing handshake
    deadline = time.monotonic() + SETTLE_S
    while speech_server.metric("voxnative_requests_total", outcome="aborted") == aborted:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert speech_server.metric("voxnative_requests_running") == 0
    assert session(speech_server, "hello there.").audio[0]


def test_a_refusal_stops_what_is_being_spoken(speech_server: Server) -> None:
    reply = SocketReply()
    with open_websocket(speech_server) as socket:
        for message in (CONFIG, text("the weather is very nice today. ")):
            socket.send(json.dumps(message))
        while reply.add(socket.recv(timeout=ANSWER_S)) != "audio":
            pass
        socket.send("no JSON")
        while reply.add(socket.recv(timeout=ANSWER_S)) != "error":
            pass
    assert reply.of_type("audio.done") == []


def test_the_log_holds_no_text(speech_server: Server) -> None:
    secret = "zebras murmur"
    session(speech_server, f"{secret}. ", "and so on.")
    for message in (secret, {"type": secret}, CONFIG | {"voice": secret}, text(secret) | {"a": 1}):
        reply = send_over_websocket(speech_server, [message])
        assert reply.close_code == 1008
    log = speech_server.log.read_text()
    assert "/v1/audio/speech/stream" in log  # sessions are logged, their contents are not
    assert secret not in log


def test_an_ordinary_request_is_not_taken_for_a_session(speech_server: Server) -> None:
    answer = httpx.get(f"{speech_server.address}/v1/audio/speech/stream")
    assert answer.status_code in (404, 405, 426)
