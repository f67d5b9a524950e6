"""The streamed response: what it sends, and a reader that reads nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from voxnative.serving.http_errors import engine_dead
from voxnative.serving.streaming import Patience, SpeechStream, opened

BODY = "http.response.body"


class Pieces:
    """Four pieces of audio; knows whether it was closed, and how many were taken."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.taken = 0
        self.closed = False

    async def read(self) -> AsyncGenerator[bytes, None]:
        try:
            for index in range(4):
                if index == self.fails_at:
                    raise engine_dead()
                self.taken += 1
                yield bytes([index])
        finally:
            self.closed = True


async def sent(pieces: Pieces, stuck_after: int | None = None) -> list[dict[str, Any]]:
    """What a client was sent that stops reading after so many messages."""
    messages: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        if len(messages) == stuck_after:
            await asyncio.Event().wait()
        messages.append(message)

    response = SpeechStream(
        pieces.read(), media_type="audio/mpeg", headers={"X-A": "b"}, reader_timeout_s=0.05
    )
    await response.stream_response(send)
    return messages


def test_every_piece_and_the_last_chunk_are_sent() -> None:
    pieces = Pieces()
    start, *bodies = asyncio.run(sent(pieces))
    assert start["status"] == 200
    assert (b"x-a", b"b") in start["headers"]
    assert [m["body"] for m in bodies] == [b"\0", b"\1", b"\2", b"\3", b""]
    assert [m["more_body"] for m in bodies] == [True] * 4 + [False]
    assert pieces.closed


def test_a_reader_that_reads_nothing_is_given_up() -> None:
    pieces = Pieces()
    messages = asyncio.run(sent(pieces, stuck_after=2))  # the start and one piece
    assert [m.get("body") for m in messages] == [None, b"\0"]
    assert pieces.taken == 2
    assert pieces.closed


def test_after_an_error_the_last_chunk_is_missing() -> None:
    pieces = Pieces(fails_at=2)
    messages = asyncio.run(sent(pieces))
    assert [m.get("more_body") for m in messages] == [None, True, True]
    assert pieces.closed


def test_an_error_before_the_first_piece_is_raised() -> None:
    pieces = Pieces(fails_at=0)

    async def scenario() -> None:
        await opened(pieces.read())

    with pytest.raises(type(engine_dead())):
        asyncio.run(scenario())
    assert pieces.closed


def test_many_waits_may_together_take_longer_than_one_may() -> None:
    async def scenario() -> int:
        n_waits = 0
        async with Patience(0.2) as patience:
            for _ in range(5):
                await patience.wait(asyncio.sleep(0.08))
                n_waits += 1
            await asyncio.sleep(0.3)  # not a wait of its own
            await patience.wait(asyncio.sleep(0))
        return n_waits

    assert asyncio.run(scenario()) == 5


@pytest.mark.parametrize("idle_s", [0.0, 0.15])
def test_a_wait_that_takes_too_long_ends_the_block(idle_s: float) -> None:
    waits: list[float] = []

    async def scenario() -> None:
        async with Patience(0.1) as patience:
            await asyncio.sleep(idle_s)
            waits.append(time.monotonic())
            await patience.wait(asyncio.Event().wait())  # type: ignore[arg-type]

    with pytest.raises(TimeoutError):
        asyncio.run(scenario())
    assert time.monotonic() - waits[0] > 0.099


def test_a_cancelled_reader_is_no_timeout() -> None:
    async def reader() -> None:
        async with Patience(60.0) as patience:
            await patience.wait(asyncio.Event().wait())  # type: ignore[arg-type]

    async def scenario() -> bool:
        task = asyncio.create_task(reader())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(scenario())
