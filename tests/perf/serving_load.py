"""Sub-reports on one engine: speed at fixed concurrency, arrivals at random, gaps, capacity."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.perf.load import StartStream, Stream, our_stream, poisson, summary, together
from voxnative.async_api import AsyncVoxNative

N_WARM_UP_PATCHES = 8


@asynccontextmanager
async def engine(
    checkpoint: Path, settings: dict[str, Any]
) -> AsyncIterator[tuple[AsyncVoxNative, float]]:
    """Our engine, ready, and the seconds from its launch on."""
    started = time.perf_counter()
    async with AsyncVoxNative(checkpoint, **settings) as speech:
        yield speech, time.perf_counter() - started


async def warm_up(start: StartStream, largest: int) -> None:
    """Every size once on the way up, so that no later run is the first of its kind."""
    for n_streams in {1, min(8, largest), largest}:
        await together(start, n_streams)


async def speed(
    start: StartStream, rate_hz: int, concurrencies: list[int], n_repeats: int
) -> dict[str, Any]:
    """Streams that arrive together; the run with the median total counts."""
    results = {}
    for n_streams in concurrencies:
        repeats = n_repeats if n_streams < 128 else max(1, n_repeats // 2)
        runs = []
        for i in range(repeats):
            runs.append(summary(await together(start, n_streams, 1000 * i), rate_hz))
        runs.sort(key=lambda run: run.get("total_real_time_factor", 0.0))
        results[str(n_streams)] = runs[len(runs) // 2] | {"repeats": repeats}
        print(n_streams, results[str(n_streams)], flush=True)
    return results


async def gap_test(
    start: StartStream, rate_hz: int, n_streams: int, arrivals_per_s: float, duration_s: float
) -> dict[str, Any]:
    """Chunk gaps of streams that decode while new requests keep arriving.

    `n_streams` are kept going; beside them requests arrive at random.
    """
    stop_at = time.perf_counter() + duration_s
    steady: list[Stream] = []

    async def keep_going(index: int) -> None:
        from tests.perf.load import read

        while time.perf_counter() < stop_at:
            steady.append(await read(start, index))

    tasks = [asyncio.create_task(keep_going(i)) for i in range(n_streams)]
    arrived = await poisson(start, arrivals_per_s, duration_s, seed=5)
    await asyncio.gather(*tasks)
    return {
        "arrivals_per_s": arrivals_per_s,
        "steady": summary(steady, rate_hz),
        "arrived": summary(arrived, rate_hz),
    }


async def serving_report(
    speech: AsyncVoxNative,
    max_num_seqs: int,
    *,
    concurrencies: list[int],
    n_patches: int,
    n_repeats: int,
    poisson_s: float,
    gap_s: float,
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """All of the above on a running engine; `keep` gets what there is after each measurement."""
    rate_hz = speech.sample_rate_hz
    await warm_up(our_stream(speech, min(N_WARM_UP_PATCHES, n_patches)), max(concurrencies))
    start = our_stream(speech, n_patches)
    report: dict[str, Any] = {"together": {}}
    for n_streams in concurrencies:
        report["together"] |= await speed(start, rate_hz, [n_streams], n_repeats)
        keep(report)
    totals = {
        int(n): run.get("total_real_time_factor", 0.0) for n, run in report["together"].items()
    }
    peak = max(totals.values())
    audio_s = n_patches * speech.config.patch_samples_out / rate_hz
    if poisson_s:
        arrivals_per_s = 0.7 * peak / audio_s
        run = summary(await poisson(start, arrivals_per_s, poisson_s), rate_hz)
        report["poisson"] = {"arrivals_per_s": round(arrivals_per_s, 2)} | run
        print("poisson", report["poisson"], flush=True)
        keep(report)
    if gap_s:
        n_steady = min(64, max_num_seqs // 2)
        arrivals_per_s = max(0.5, 0.1 * peak / audio_s)
        report["gaps"] = await gap_test(start, rate_hz, n_steady, arrivals_per_s, gap_s)
        print("gaps", report["gaps"], flush=True)
    return report
