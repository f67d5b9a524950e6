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

    `work` runs in the caller's task. In one of its own, it would begin and end some passes of the
    event loop later, each of them as long as a busy server makes it.

    Raises:
        RequestFailed: 499, the client went away; nobody will read the answer.
    """
    caller = asyncio.current_task()
    assert caller is not None
    n_cancelled = caller.cancelling()
    has_left = False

    def leave(_: asyncio.Task[None]) -> None:
        nonlocal has_left
        has_left = True
        caller.cancel()

    gone = asyncio.create_task(_disconnected(request))
    gone.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and caller.cancelling() == n_cancelled + 1:  # nobody else wants it to end
            raise client_gone() from None
        raise
    finally:
        gone.remove_done_callback(leave)
        gone.cancel()
        if has_left:
            caller.uncancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
