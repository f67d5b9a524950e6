"""How much at once and for how long: a bounded queue, and clients that go away."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import Request

from voxnative.serving.http_errors import client_gone, queue_full

T = TypeVar("T")
LONGEST_RETRY_S = 60
_FIRST_GUESS_S = 2.0
_FORGETTING = 0.2  # weight of the newest service time in their running mean


class Admission:
    """Lets `max_concurrency` requests into the engine and `max_queue` wait, in order.

    Args:
        max_concurrency: requests that hold a slot at once.
        max_queue: requests that wait for one.
    """

    def __init__(self, max_concurrency: int, max_queue: int) -> None:
        self.max_concurrency = max_concurrency
        self.max_queue = max_queue
        self.n_running = 0
        self.n_waiting = 0
        self._slots = asyncio.Semaphore(max_concurrency)
        self._service_s = _FIRST_GUESS_S

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot of the engine.

        Raises:
            RequestFailed: 429, the queue is full.
        """
        if self._slots.locked() and self.n_waiting >= self.max_queue:
            raise queue_full(self.retry_after_s())
        self.n_waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.n_waiting -= 1
        self.n_running += 1
        started = time.perf_counter()
        try:
            yield
        finally:
            self.n_running -= 1
            self._slots.release()
            self._service_s += _FORGETTING * (time.perf_counter() - started - self._service_s)

    def retry_after_s(self) -> int:
        """Whole seconds until the requests that wait now will probably have started."""
        wait_s = self._service_s * (self.n_waiting + 1) / self.max_concurrency
        return min(max(math.ceil(wait_s), 1), LONGEST_RETRY_S)


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """Await `work`; when the client goes away first, cancel it.

    Raises:
        RequestFailed: 499, the client went away; nobody will read the answer.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise client_gone()
        return task.result()
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
