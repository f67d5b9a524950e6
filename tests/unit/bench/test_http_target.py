"""The client, against a small server on this machine that answers as it is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.bench.answering import PAUSE_S, SAMPLES, Answering, answering_server
from voxnative.bench.http_target import HttpTarget
from voxnative.bench.record import RequestRecord, SpeechTask
from voxnative.bench.target import time_request


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with answering_server() as address:
        yield address


def ask(url: str, task: SpeechTask, **options: Any) -> RequestRecord:
    async def run() -> RequestRecord:
        async with HttpTarget("it", url, "/v1/audio/speech", **options) as target:
            return await time_request(target, task, time.perf_counter())

    return asyncio.run(run())


def task(text: str, **fields: Any) -> SpeechTask:
    return SpeechTask(0, "id", text, 7, **fields)


@pytest.mark.parametrize("text", ["plain", "odd"])
def test_samples_arrive_whole_and_timed(url: str, text: str) -> None:
    record = ask(url, task(text))
    assert record.error is None
    assert record.rate_hz == 16_000
    np.testing.assert_array_equal(record.samples * 32768, SAMPLES)
    assert record.audio_s == pytest.approx(0.1)
    assert record.ended_s - record.ttfa_s > PAUSE_S * 0.5  # a late first read shortens it
    assert 0 < record.ttfa_s < record.ended_s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("refuse", "HTTP 429: full"),
        ("no rate", "sample_rate_hz"),
        ("nothing", "without audio"),
        ("inside", "inside a sample"),
        ("break", "ClientPayloadError"),
    ],
)
def test_what_is_no_whole_answer_is_an_error(url: str, text: str, message: str) -> None:
    record = ask(url, task(text))
    assert record.error is not None
    assert message in record.error


def test_a_server_that_is_not_there() -> None:
    assert "ClientConnectorError" in str(ask("http://127.0.0.1:9", task("plain")).error)


def test_a_peer_may_state_its_rate(url: str) -> None:
    assert ask(url, task("no rate"), sample_rate_hz=24_000).rate_hz == 24_000


def test_the_body(url: str, tmp_path: Path) -> None:
    wav = tmp_path / "a.wav"
    wav.write_bytes(b"RIFF")
    spoken = task(
        "plain", reference=str(wav), reference_text="words", extra_body={"cfg_value": 3, "seed": 9}
    )
    ask(url, spoken, extra_body={"voice": "x", "stream": None}, api_key="secret")
    assert Answering.bodies[-1] == {
        "input": "plain",
        "response_format": "pcm",
        "seed": 9,
        "ref_audio": "data:audio/wav;base64,UklGRg==",
        "ref_text": "words",
        "cfg_value": 3,
        "voice": "x",
        "authorization": "Bearer secret",
    }
