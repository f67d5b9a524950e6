"""Load: how many requests are under way (closed loop) or when each is sent (open loop)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from voxnative.bench.record import RequestRecord, SpeechTask

Send = Callable[[SpeechTask, float], Awaitable[RequestRecord]]
Done = Callable[[RequestRecord], None]


def arrival_times(n: int, rate: float, burstiness: float, seed: int) -> np.ndarray:
    """When the requests of an open loop are sent.

    Gaps follow a gamma distribution with the mean 1 / rate; at burstiness 1 that is the
    exponential one, so that arrivals are Poisson. Below 1 they come in bursts.

    Args:
        n: requests.
        rate: requests a second.
        burstiness: shape of the gaps.
        seed: the same times for every target.

    Returns:
        Seconds ``[n]`` from the start, ascending; the first is 0.
    """
    gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (rate * burstiness), n)
    gaps[0] = 0.0
    return np.cumsum(gaps)


async def closed_loop(
    send: Send, tasks: Sequence[SpeechTask], n_streams: int, done: Done
) -> tuple[list[RequestRecord], float]:
    """Keep `n_streams` requests under way until all are answered.

    Returns:
        Records in the order of the tasks, and the wall seconds.

    Raises:
        Exception: the first that `send` raised; the other requests are broken off.
    """
    waiting = iter(tasks)
    records: dict[int, RequestRecord] = {}
    started = time.perf_counter()

    async def stream() -> None:
        for task in waiting:
            record = await send(task, started)
            records[task.index] = record
            done(record)

    with _first_error():
        async with asyncio.TaskGroup() as group:
            for _ in range(min(n_streams, len(tasks))):
                group.create_task(stream())
    wall_s = time.perf_counter() - started
    return [records[task.index] for task in tasks], wall_s


async def open_loop(
    send: Send, tasks: Sequence[SpeechTask], times_s: Sequence[float], done: Done
) -> tuple[list[RequestRecord], float]:
    """Send each request at its time, however many are under way.

    Returns:
        Records in the order of the tasks, and the wall seconds.

    Raises:
        Exception: the first that `send` raised; the other requests are broken off.
    """
    started = time.perf_counter()

    async def one(task: SpeechTask, at_s: float) -> RequestRecord:
        await asyncio.sleep(max(0.0, at_s - (time.perf_counter() - started)))
        record = await send(task, started)
        done(record)
        return record

    with _first_error():
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(one(task, float(at_s)))
                for task, at_s in zip(tasks, times_s, strict=True)
            ]
    wall_s = time.perf_counter() - started
    return [run.result() for run in runs], wall_s


@contextmanager
def _first_error() -> Iterator[None]:
    """What broke a group of tasks, instead of the group: callers know the errors they can meet."""
    try:
        yield
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from group
