"""Loads: how many are under way, when they are sent, and that a seed fixes both."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from voxnative.bench.load import arrival_times, closed_loop, open_loop
from voxnative.bench.record import RequestRecord, SpeechTask

TASKS = [SpeechTask(i, str(i), "text", i) for i in range(9)]


class Sender:
    """Takes a while for each request and keeps how many are under way."""

    def __init__(self, seconds: float = 0.02) -> None:
        self.seconds = seconds
        self.n_open = self.n_most = 0

    async def __call__(self, task: SpeechTask, started: float) -> RequestRecord:
        self.n_open += 1
        self.n_most = max(self.n_most, self.n_open)
        await asyncio.sleep(self.seconds * (1 + task.index % 2))
        self.n_open -= 1
        return RequestRecord(task, asyncio.get_running_loop().time())


@pytest.mark.parametrize(("n_streams", "n_most"), [(1, 1), (4, 4), (50, 9)])
def test_a_closed_loop_keeps_its_streams_busy(n_streams: int, n_most: int) -> None:
    send, done = Sender(), []
    records, wall_s = asyncio.run(closed_loop(send, TASKS, n_streams, done.append))
    assert send.n_most == n_most
    assert [record.task.index for record in records] == list(range(9))
    assert len(done) == 9
    assert wall_s > 0.02


def test_an_open_loop_sends_at_its_times_whatever_is_under_way() -> None:
    send = Sender(0.2)
    times = [0.0, 0.05, 0.1]
    records, wall_s = asyncio.run(open_loop(send, TASKS[:3], times, lambda _: None))
    assert send.n_most == 3
    assert [record.task.index for record in records] == [0, 1, 2]
    assert wall_s >= 0.3


def test_poisson_arrivals() -> None:
    times = arrival_times(20_000, rate=4.0, burstiness=1.0, seed=3)
    gaps = np.diff(times)
    assert times[0] == 0
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() == pytest.approx(0.25, rel=0.05)  # of an exponential: equal to its mean
    np.testing.assert_array_equal(times, arrival_times(20_000, 4.0, 1.0, 3))
    assert times[1] != arrival_times(20_000, 4.0, 1.0, 4)[1]


def test_burstiness_changes_the_spread_and_not_the_rate() -> None:
    gaps = np.diff(arrival_times(20_000, rate=4.0, burstiness=0.25, seed=3))
    assert gaps.mean() == pytest.approx(0.25, rel=0.05)
    assert gaps.std() == pytest.approx(0.5, rel=0.08)


@pytest.mark.parametrize("is_open", [True, False])
def test_what_breaks_a_request_breaks_the_run_by_its_own_name(is_open: bool) -> None:
    async def send(task: SpeechTask, started: float) -> RequestRecord:
        raise OSError("no more files")

    run = (
        open_loop(send, TASKS[:2], [0.0, 0.0], lambda _: None)
        if is_open
        else closed_loop(send, TASKS[:2], 2, lambda _: None)
    )
    with pytest.raises(OSError, match="no more files"):
        asyncio.run(run)
