"""Many streams from ``/v1/audio/speech`` at once, read by several client processes.

One Python process reads about as many pieces a second as one server can send; several keep the
clients from being what is measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import aiohttp
import numpy as np

SPEECH = "/v1/audio/speech"
LEAD_S = 1.0  # for all processes to be there when the first request goes out
BYTES_PER_SAMPLE = 2


@dataclass
class Stream:
    """One answer; times are those of the machine's monotonic clock.

    Attributes:
        status: HTTP status, 0 where no answer came.
        error: what ended the answer early.
        rate_hz: of the samples.
        times_s: arrival of each piece.
        pcm: what came.
    """

    sent_s: float
    status: int = 0
    error: str | None = None
    rate_hz: int = 0
    times_s: list[float] = field(default_factory=list)
    pcm: bytes = b""
    ended_s: float = 0.0

    @property
    def audio_s(self) -> float:
        return len(self.pcm) / BYTES_PER_SAMPLE / self.rate_hz if self.rate_hz else 0.0

    @property
    def samples(self) -> np.ndarray:
        """float32 ``[n]``."""
        return np.frombuffer(self.pcm, "<i2").astype(np.float32) / 32768

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and self.error is None


async def read_stream(session: aiohttp.ClientSession, body: dict[str, Any]) -> Stream:
    """Send one request and read its answer to the end, whatever that is."""
    stream = Stream(time.monotonic())
    pieces = []
    try:
        async with session.post(SPEECH, json=body) as answer:
            stream.status = answer.status
            if answer.status == 200:
                stream.rate_hz = int(answer.headers["x-audio-sample-rate"])
                async for piece in answer.content.iter_any():
                    stream.times_s.append(time.monotonic())
                    pieces.append(piece)
            else:
                stream.error = (await answer.text())[:200]
    except aiohttp.ClientError as error:
        stream.error = type(error).__name__
    stream.ended_s = time.monotonic()
    stream.pcm = b"".join(pieces)
    return stream


async def _read_share(address: str, bodies: list[dict[str, Any]], start_s: float) -> list[Stream]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=300)
    async with aiohttp.ClientSession(address, connector=connector, timeout=timeout) as session:
        await asyncio.sleep(max(0.0, start_s - time.monotonic()))
        return await asyncio.gather(*(read_stream(session, body) for body in bodies))


def _process(address: str, bodies: list[dict[str, Any]], start_s: float) -> list[Stream]:
    return asyncio.run(_read_share(address, bodies, start_s))


class Clients:
    """Client processes that live as long as the measurement.

    Args:
        n_processes: how many.
    """

    def __init__(self, n_processes: int) -> None:
        self._n_processes = n_processes
        self._pool = ProcessPoolExecutor(n_processes, mp_context=get_context("spawn"))

    async def alone(self, address: str, body: dict[str, Any]) -> Stream:
        """One request."""
        (stream,) = await self._read(address, [body], 0.0)
        return stream

    async def together(self, address: str, bodies: Sequence[dict[str, Any]]) -> list[Stream]:
        """All requests at one moment; answers in the order of the bodies."""
        return await self._read(address, bodies, LEAD_S)

    async def _read(
        self, address: str, bodies: Sequence[dict[str, Any]], lead_s: float
    ) -> list[Stream]:
        loop = asyncio.get_running_loop()
        start_s = time.monotonic() + lead_s
        n = min(self._n_processes, len(bodies))
        shares = [list(bodies[i::n]) for i in range(n)]
        parts = await asyncio.gather(
            *(
                loop.run_in_executor(self._pool, _process, address, share, start_s)
                for share in shares
            )
        )
        streams: list[Any] = [None] * len(bodies)
        for i, part in enumerate(parts):
            streams[i::n] = part
        return streams

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def summary(streams: Sequence[Stream]) -> dict[str, Any]:
    """Throughput, first audio and pauses of streams that ran together."""
    whole = [stream for stream in streams if stream.is_whole and stream.times_s]
    result: dict[str, Any] = {"streams": len(streams), "failed": len(streams) - len(whole)}
    if not whole:
        return result
    wall_s = max(s.times_s[-1] for s in whole) - min(s.sent_s for s in whole)
    first_s = np.array([s.times_s[0] - s.sent_s for s in whole])
    return result | {
        "audio_s": round(sum(s.audio_s for s in whole), 2),
        "wall_s": round(wall_s, 3),
        "times_real_time": round(sum(s.audio_s for s in whole) / wall_s, 2),
        "ttfa_ms": {
            name: round(1000 * float(np.percentile(first_s, q)), 1)
            for name, q in (("p50", 50), ("p95", 95), ("p99", 99), ("max", 100))
        },
    }
