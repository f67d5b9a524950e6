"""How much at once and for how long: a bounded queue, and clients that go away."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import TypeVar

from fastapi import Request

from voxnative.serving.http_errors import client_gone, queue_full, share_lost

T = TypeVar("T")
LONGEST_RETRY_S = 60
_FIRST_GUESS_S = 2.0
_FORGETTING = 0.2  # weight of the newest service time in their running mean


class Admission:
    """Lets `max_concurrency` requests into the engine and `max_queue` wait, in order.

    Args:
        max_concurrency: requests that hold a slot at once.
        max_queue: requests that wait for one.

    Attributes:
        max_concurrency: as given, less what has been lost.
        n_running: requests that hold a slot.
        n_waiting: requests in the queue.
    """

    def __init__(self, max_concurrency: int, max_queue: int) -> None:
        self.max_concurrency = max_concurrency
        self.max_queue = max_queue
        self.n_running = 0
        self.n_waiting = 0
        self._n_slots = max_concurrency  # before any loss
        self._n_to_lose = 0  # slots that are lost and not taken out yet
        self._slots = asyncio.Semaphore(max_concurrency)
        self._service_s = _FIRST_GUESS_S

    def keep(self, share: Fraction) -> None:
        """Hand out this share of the first number of slots from now on, and at least one.

        Slots that are held are given back first, by the requests of what was lost as by others.
        """
        left = max(math.ceil(self._n_slots * share), 1)
        self._n_to_lose += self.max_concurrency - left
        self.max_concurrency = left

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot of the engine.

        Raises:
            RequestFailed: the queue is full: 429, or 503 where slots have been lost.
        """
        while self._n_to_lose and not self._slots.locked():
            await self._slots.acquire()  # does not wait
            self._n_to_lose -= 1
        if self._slots.locked() and self.n_waiting >= self.max_queue:
            is_whole = self.max_concurrency == self._n_slots
            raise (queue_full if is_whole else share_lost)(self.retry_after_s())
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
            if self._n_to_lose:
                self._n_to_lose -= 1
            else:
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
