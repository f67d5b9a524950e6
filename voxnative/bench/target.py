"""What speaks: a server, our engine in this process, or a peer; and one request, timed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from voxnative.bench.record import RequestRecord, SpeechTask


class RequestError(Exception):
    """A target refused a request or broke it off; the run goes on and counts it."""


class Target(Protocol):
    """Speaks tasks; an asynchronous context manager around whatever it holds.

    Attributes:
        name: in the report.
        max_streams: requests it can run at once; None for any number.
    """

    name: str
    max_streams: int | None

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def speak(self, task: SpeechTask) -> AsyncGenerator[tuple[np.ndarray, int], None]:
        """Yields new samples, float32 ``[n]``, and their rate in Hz, as they come.

        Raises:
            RequestError: there is no whole answer.
        """
        ...

    def facts(self) -> dict[str, Any]:
        """Versions, settings and stand-ins, for the report."""
        ...


async def time_request(target: Target, task: SpeechTask, started: float) -> RequestRecord:
    """Send one request and read its answer to the end.

    Args:
        target: what speaks.
        task: what.
        started: start of the run, by ``time.perf_counter``.
    """
    sent = time.perf_counter()
    record = RequestRecord(task, sent - started)
    try:
        async with aclosing(target.speak(task)) as pieces:
            async for samples, rate_hz in pieces:
                record.arrivals_s.append(time.perf_counter() - sent)
                record.pieces.append(samples)
                record.rate_hz = rate_hz
    except RequestError as error:
        record.error = str(error)
    record.ended_s = time.perf_counter() - sent
    if record.error is None and not record.audio_s:
        record.error = "an answer without audio"
    return record
