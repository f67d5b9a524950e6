"""Client processes that keep a number of requests under way, and what they cost.

bench     the benchmark's own reader (`voxnative.bench.http_target`)
aiohttp   the reader of `tests.perf.http_streams`
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import aiohttp

from tests.perf.http_streams import BYTES_PER_SAMPLE, LEAD_S, read_stream
from voxnative.bench.http_target import HttpTarget
from voxnative.bench.load import closed_loop
from voxnative.bench.record import SpeechTask
from voxnative.bench.target import time_request

SPEECH = "/v1/audio/speech"
READERS = ("bench", "aiohttp")


@dataclass
class Answer:
    """One request as its client saw it.

    Attributes:
        sent_s, first_s, ended_s: on the machine's monotonic clock.
        n_pieces: reads in which audio came.
        n_samples: of the whole answer.
        error: why there is no whole answer.
    """

    sent_s: float
    first_s: float
    ended_s: float
    n_pieces: int
    n_samples: int
    error: str | None


@dataclass
class Share:
    """What one client process did, and the CPU seconds that it took."""

    answers: list[Answer]
    cpu_s: float


async def _bench(address: str, bodies: Sequence[dict[str, Any]], n_streams: int) -> list[Answer]:
    tasks = [
        SpeechTask(index, "", body["input"], body["seed"], extra_body=body)
        for index, body in enumerate(bodies)
    ]
    async with HttpTarget("voxnative", address, SPEECH) as target:
        started = time.perf_counter()
        records, _ = await closed_loop(
            lambda task, started: time_request(target, task, started),
            tasks,
            n_streams,
            lambda _: None,
        )
    return [
        Answer(
            sent_s=started + record.sent_s,
            first_s=started + record.sent_s + (record.arrivals_s or [0.0])[0],
            ended_s=started + record.sent_s + record.ended_s,
            n_pieces=len(record.pieces),
            n_samples=len(record.samples),
            error=record.error,
        )
        for record in records
    ]


async def _aiohttp(address: str, bodies: Sequence[dict[str, Any]], n_streams: int) -> list[Answer]:
    waiting = iter(bodies)
    answers: list[Answer] = []

    async def stream(session: aiohttp.ClientSession) -> None:
        for body in waiting:
            read = await read_stream(session, body)
            n_samples = len(read.pcm) // BYTES_PER_SAMPLE
            first_s = (read.times_s or [read.sent_s])[0]
            answers.append(
                Answer(read.sent_s, first_s, read.ended_s, len(read.times_s), n_samples, read.error)
            )

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=300)
    async with aiohttp.ClientSession(address, connector=connector, timeout=timeout) as session:
        await asyncio.gather(*(stream(session) for _ in range(n_streams)))
    return answers


def _process(
    reader: str, address: str, bodies: Sequence[dict[str, Any]], n_streams: int, start_s: float
) -> Share:
    async def run() -> Share:
        await asyncio.sleep(max(0.0, start_s - time.monotonic()))
        cpu_s = time.process_time()
        read = {"bench": _bench, "aiohttp": _aiohttp}[reader]
        answers = await read(address, bodies, n_streams)
        return Share(answers, time.process_time() - cpu_s)

    return asyncio.run(run())


class LoadClients:
    """Client processes that live as long as the measurement.

    Args:
        reader: one of `READERS`.
        n_processes: how many.
    """

    def __init__(self, reader: str, n_processes: int) -> None:
        self._reader = reader
        self._n_processes = n_processes
        self._pool = ProcessPoolExecutor(n_processes, mp_context=get_context("spawn"))

    async def read(self, address: str, bodies: Sequence[dict[str, Any]], n_streams: int) -> Share:
        """Answers of all bodies, `n_streams` at a time, and the CPU of all processes."""
        loop, start_s = asyncio.get_running_loop(), time.monotonic() + LEAD_S
        n = self._n_processes
        shares = await asyncio.gather(
            *(
                loop.run_in_executor(
                    self._pool,
                    _process,
                    self._reader,
                    address,
                    bodies[i::n],
                    n_streams // n,
                    start_s,
                )
                for i in range(n)
            )
        )
        return Share(
            [answer for share in shares for answer in share.answers],
            sum(share.cpu_s for share in shares),
        )

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
