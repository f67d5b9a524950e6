"""Streams of speech and when their chunks arrived; the same for our engine and a peer's."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# About 110 characters, as the bar says.
TEXT = (
    "the morning train was late again, so we walked along the river into town and talked about the "
    "long winter."
)

# Starts one stream with this seed; yields the number of samples of each chunk.
StartStream = Callable[[int], AsyncIterator[int]]


@dataclass
class Stream:
    """One request: when it was sent, and each chunk's arrival and length."""

    sent_s: float
    arrivals_s: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    error: str | None = None

    @property
    def ttfa_s(self) -> float:
        return self.arrivals_s[0] - self.sent_s

    def lateness_s(self, rate_hz: int) -> list[float]:
        """Seconds each chunk came after the end of what was there before, played from the first."""
        played = np.cumsum([0, *self.samples[:-1]]) / rate_hz
        return [a - self.arrivals_s[0] - p for a, p in zip(self.arrivals_s, played, strict=True)]

    def gaps_s(self) -> list[float]:
        return np.diff(self.arrivals_s).tolist()


async def read(start: StartStream, seed: int) -> Stream:
    """Read one stream to its end."""
    stream = Stream(time.perf_counter())
    try:
        async for n_samples in start(seed):
            stream.arrivals_s.append(time.perf_counter())
            stream.samples.append(n_samples)
    except Exception as error:  # the report says which, and the other streams go on
        stream.error = f"{type(error).__name__}: {error}"
    return stream


async def together(start: StartStream, n_streams: int, first_seed: int = 0) -> list[Stream]:
    """All streams at once."""
    tasks = [asyncio.create_task(read(start, first_seed + i)) for i in range(n_streams)]
    return list(await asyncio.gather(*tasks))


async def poisson(
    start: StartStream, rate_per_s: float, duration_s: float, seed: int = 0
) -> list[Stream]:
    """Streams that arrive at random, `rate_per_s` of them a second on average."""
    chance = random.Random(seed)
    tasks: list[asyncio.Task[Stream]] = []
    started = due = time.perf_counter()
    while (due := due + chance.expovariate(rate_per_s)) < started + duration_s:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(read(start, seed + len(tasks))))
    return list(await asyncio.gather(*tasks))


def percentiles_ms(seconds: list[float]) -> dict[str, float]:
    """Median, tail and extremes, in milliseconds."""
    values = 1000 * np.array(seconds)
    wanted = {"p50": 50, "p90": 90, "p99": 99, "p99.9": 99.9, "max": 100}
    return {name: round(float(np.percentile(values, q)), 2) for name, q in wanted.items()}


def summary(streams: list[Stream], rate_hz: int) -> dict[str, Any]:
    """The figures of one run."""
    failed = [s.error for s in streams if s.error is not None]
    good = [s for s in streams if s.error is None and s.arrivals_s]
    if not good:
        return {"streams": len(streams), "failed": len(failed), "errors": failed[:3]}
    audio_s = [sum(s.samples) / rate_hz for s in good]
    wall_s = [s.arrivals_s[-1] - s.sent_s for s in good]
    span_s = max(s.arrivals_s[-1] for s in good) - min(s.sent_s for s in good)
    late = [late for s in good for late in s.lateness_s(rate_hz)]
    rtfs = [w / a for w, a in zip(wall_s, audio_s, strict=True)]
    return {
        "streams": len(streams),
        "failed": len(failed),
        "errors": failed[:3],
        "chunks": sum(len(s.samples) for s in good),
        "patches_a_stream": sorted({len(s.samples) for s in good})[:4],
        "audio_s": round(sum(audio_s), 2),
        "rtf_median": round(float(np.median(rtfs)), 4),
        "rtf_max": round(max(rtfs), 4),
        "total_real_time_factor": round(sum(audio_s) / span_s, 1),
        "ttfa_ms": percentiles_ms([s.ttfa_s for s in good]),
        "gap_ms": percentiles_ms([gap for s in good for gap in s.gaps_s()] or [0.0]),
        "late_chunks": sum(bool(value > 1e-3) for value in late),
        "worst_lateness_ms": round(1000 * max(late), 2),
    }


def our_stream(speech: Any, n_patches: int) -> StartStream:
    """Streams of `AsyncVoxNative`, each of exactly `n_patches` where the stop head is zero."""

    async def start(seed: int) -> AsyncIterator[int]:
        arguments = {"seed": seed, "max_steps": n_patches, "min_steps": n_patches - 1}
        arguments["max_silence_s"] = 0  # random weights may well be silent: every patch counts
        async for chunk in speech.stream(TEXT, cfg=2.0, timesteps=10, **arguments):
            yield len(chunk.samples)

    return start
