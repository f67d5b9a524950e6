"""The queue: bounded, in order, and given back whatever happens."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from typing import Any

import pytest
from fastapi import Request

from voxnative.serving.http_errors import RequestFailed
from voxnative.serving.limits import LONGEST_RETRY_S, Admission, while_connected


def connection(*, gone: asyncio.Event) -> Request:
    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http"}, receive)


def test_so_many_at_once_and_the_rest_in_order() -> None:
    async def scenario() -> None:
        admission = Admission(max_concurrency=2, max_queue=3)
        order: list[int] = []
        most = 0

        async def one(index: int) -> None:
            nonlocal most
            async with admission.slot():
                most = max(most, admission.n_running)
                order.append(index)
                await asyncio.sleep(0.01)

        await asyncio.gather(*(one(index) for index in range(5)))
        assert order == [0, 1, 2, 3, 4]
        assert most == 2
        assert (admission.n_running, admission.n_waiting) == (0, 0)

    asyncio.run(scenario())


def test_past_the_queue_is_a_429_with_retry_after() -> None:
    async def scenario() -> None:
        admission = Admission(max_concurrency=1, max_queue=1)
        async with admission.slot():
            waiting = asyncio.create_task(_hold(admission))
            await asyncio.sleep(0)
            with pytest.raises(RequestFailed) as caught:
                async with admission.slot():
                    pass
        await waiting
        assert caught.value.status == 429
        assert 1 <= int(caught.value.headers["Retry-After"]) <= LONGEST_RETRY_S

    asyncio.run(scenario())


def test_no_queue_at_all() -> None:
    async def scenario() -> None:
        admission = Admission(max_concurrency=1, max_queue=0)
        async with admission.slot():
            with pytest.raises(RequestFailed, match="queue is full"):
                async with admission.slot():
                    pass
        async with admission.slot():
            pass

    asyncio.run(scenario())


def test_an_error_and_a_cancelled_wait_give_the_place_back() -> None:
    async def scenario() -> None:
        admission = Admission(max_concurrency=1, max_queue=5)
        with pytest.raises(KeyError):
            await _fail_while_another_waits(admission)
        assert (admission.n_running, admission.n_waiting) == (0, 0)
        await _hold(admission)

    asyncio.run(scenario())


async def _fail_while_another_waits(admission: Admission) -> None:
    async with admission.slot():
        waiting = asyncio.create_task(_hold(admission))
        await asyncio.sleep(0)
        assert admission.n_waiting == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        raise KeyError


async def _hold(admission: Admission) -> None:
    async with admission.slot():
        pass


def test_a_lost_share_of_free_slots() -> None:
    async def scenario() -> None:
        admission = Admission(max_concurrency=4, max_queue=1)
        admission.keep(Fraction(1, 2))
        assert admission.max_concurrency == 2
        async with admission.slot(), admission.slot():
            waiting = asyncio.create_task(_hold(admission))
            await asyncio.sleep(0)
            assert (admission.n_running, admission.n_waiting) == (2, 1)
            with pytest.raises(RequestFailed) as caught:
                async with admission.slot():
                    pass
        await waiting
        assert caught.value.status == 503
        assert caught.value.body["error"]["code"] == "share_lost"
        assert 1 <= int(caught.value.headers["Retry-After"]) <= LONGEST_RETRY_S

    asyncio.run(scenario())


def test_a_lost_share_of_held_slots() -> None:
    """Of four, two are lost with a queue behind them: the two that end first are not handed on."""

    async def scenario() -> None:
        admission = Admission(max_concurrency=4, max_queue=4)
        ends = [asyncio.Event() for _ in range(8)]

        async def one(end: asyncio.Event) -> None:
            async with admission.slot():
                await end.wait()

        tasks = [asyncio.create_task(one(end)) for end in ends]
        await asyncio.sleep(0.01)
        admission.keep(Fraction(1, 2))
        running = []
        for end in ends:
            running.append(admission.n_running)
            end.set()
            await asyncio.sleep(0.01)
        assert running == [4, 3, 2, 2, 2, 2, 2, 1]
        await asyncio.gather(*tasks)
        assert (admission.n_running, admission.n_waiting) == (0, 0)

    asyncio.run(scenario())


def test_shares_are_of_the_first_number_and_never_nothing() -> None:
    admission = Admission(max_concurrency=5, max_queue=0)
    left = []
    for n_alive in (3, 2, 1, 0):
        admission.keep(Fraction(n_alive, 4))
        left.append(admission.max_concurrency)
    assert left == [4, 3, 2, 1]


def test_work_is_cancelled_when_the_client_goes() -> None:
    async def scenario() -> None:
        gone, cancelled = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        asyncio.get_running_loop().call_later(0.01, gone.set)
        with pytest.raises(RequestFailed) as caught:
            await while_connected(connection(gone=gone), work())
        assert caught.value.status == 499
        assert cancelled.is_set()

    asyncio.run(scenario())


def test_results_and_errors_of_the_work_pass() -> None:
    async def scenario() -> None:
        request = connection(gone=asyncio.Event())

        async def answer() -> int:
            return 7

        async def fail() -> None:
            raise LookupError("no")

        assert await while_connected(request, answer()) == 7
        with pytest.raises(LookupError, match="no"):
            await while_connected(request, fail())

    asyncio.run(scenario())


def test_work_runs_in_the_callers_task() -> None:
    """It begins at once, and what it gives comes at once."""

    async def scenario() -> None:
        n_passes = 0

        async def count() -> None:
            nonlocal n_passes
            while True:
                n_passes += 1
                await asyncio.sleep(0)

        async def answer() -> asyncio.Task | None:
            return asyncio.current_task()

        counting = asyncio.create_task(count())
        ran_in = await while_connected(connection(gone=asyncio.Event()), answer())
        assert ran_in is asyncio.current_task()
        assert n_passes == 0
        counting.cancel()

    asyncio.run(scenario())


def test_a_caller_that_is_cancelled_is_no_client_that_left() -> None:
    async def scenario() -> None:
        gone = asyncio.Event()
        waiting = while_connected(connection(gone=gone), asyncio.sleep(10))
        caller = asyncio.create_task(waiting)
        await asyncio.sleep(0.01)
        caller.cancel()
        gone.set()
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(scenario())


def test_an_error_while_the_client_leaves_leaves_no_cancellation_behind() -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def fail() -> None:
            try:
                await asyncio.sleep(10)
            finally:
                raise LookupError("no")

        asyncio.get_running_loop().call_later(0.01, gone.set)
        with pytest.raises(LookupError):
            await while_connected(connection(gone=gone), fail())
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(scenario())
