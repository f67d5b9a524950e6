"""Host time of the front end: from a call to the engine core, and from its samples to a reader.

The engine core is `scripted_core`, so that what is measured is the front end alone, at any pace.

    python -m tests.perf.front_end [--model DIR | --published-format] [--streams 64]
        [--patches 40] [--step-ms 24] [--repeats 5] [--profile hand_over|chunks]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import os
import pstats
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.perf.load import our_stream
from tests.perf.published_format import write_published_format
from tests.perf.scripted_core import ScriptedCore
from voxnative.async_api import SHIPPED_CHECKPOINT, AsyncVoxNative
from voxnative.config import VoxConfig
from voxnative.frozen_heap import freeze_heap

QUIET_S = 0.4  # for the last request to be out, before the core starts to speak


class Collections:
    """Time in the garbage collector."""

    def __init__(self) -> None:
        self.seconds, self.n_full = 0.0, 0
        self._started = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._started = time.perf_counter()
            return
        self.seconds += time.perf_counter() - self._started
        self.n_full += info["generation"] == 2

    def close(self) -> None:
        gc.callbacks.remove(self._note)


def stand_in_engine(model: Path, core: ScriptedCore, max_num_seqs: int) -> Any:
    """vLLM's asynchronous engine as we start it, around a scripted core."""
    from vllm.v1.executor import Executor

    from voxnative.engine.async_engine import SpeechAsyncLLM
    from voxnative.engine.start import engine_args

    args = engine_args(
        model,
        VoxConfig.from_dir(model),
        dtype=None,
        max_num_seqs=max_num_seqs,
        max_model_len=None,
        kv_cache_memory_bytes=None,
    )
    config = args.create_engine_config()
    return SpeechAsyncLLM(
        config,
        Executor.get_class(config),
        log_stats=not args.disable_log_stats,
        log_requests=args.enable_log_requests,
        client_addresses=core.addresses,
    )


class Cpu:
    """CPU seconds of the process and of the event loop's thread."""

    def __init__(self) -> None:
        self.process_s, self.loop_s = time.process_time(), time.thread_time()

    def since(self) -> tuple[float, float]:
        return time.process_time() - self.process_s, time.thread_time() - self.loop_s


async def one_run(
    speech: AsyncVoxNative, core: ScriptedCore, arguments: argparse.Namespace, part: str | None
) -> dict[str, Any]:
    """`streams` calls at once, all their chunks read."""
    n_streams, n_patches = arguments.streams, arguments.patches
    start = our_stream(speech, n_patches)

    async def read(seed: int) -> int:
        return len([n async for n in start(seed)])

    profile = cProfile.Profile()
    collections = Collections()
    cpu, started = Cpu(), time.perf_counter()
    if part == "hand_over":
        profile.enable()
    tasks = [asyncio.create_task(read(i)) for i in range(n_streams)]
    arrivals: list[float] = []
    while len(arrivals) < n_streams:
        await asyncio.sleep(QUIET_S)
        arrivals += core.arrivals_s()
    profile.disable()
    hand_over = cpu.since()
    gc_hand_over_s = collections.seconds
    cpu = Cpu()
    spoke_s = time.perf_counter()
    if part == "chunks":
        profile.enable()
    core.speak(n_streams, arguments.step_ms / 1000)
    counts = await asyncio.gather(*tasks)
    profile.disable()
    chunks = cpu.since()
    n_chunks = sum(counts)
    assert n_chunks == n_streams * n_patches, n_chunks
    collections.close()
    if part is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        pstats.Stats(profile).sort_stats("cumulative").print_stats(70)
    run = figures(started, arrivals, hand_over, chunks, n_chunks, gc_hand_over_s, collections)
    return run | {"chunk_wall_us": 1e6 * (time.perf_counter() - spoke_s) / n_chunks}


def figures(
    sent_s: float,
    arrivals_s: list[float],
    hand_over: tuple[float, float],
    chunks: tuple[float, float],
    n_chunks: int,
    gc_hand_over_s: float,
    collections: Collections,
) -> dict[str, Any]:
    """One run in figures.

    Args:
        sent_s: when the first call was made.
        arrivals_s: when the requests were at the engine core.
        hand_over, chunks: CPU seconds of the process and of the loop in each part, see `Cpu`.
        n_chunks: of all streams.
        gc_hand_over_s: seconds of collections in the first part.
        collections: of both parts.
    """
    return {
        "hand_over_first_ms": 1000 * (min(arrivals_s) - sent_s),
        "hand_over_last_ms": 1000 * (max(arrivals_s) - sent_s),
        "hand_over_loop_cpu_ms": 1000 * hand_over[1],
        "hand_over_process_cpu_ms": 1000 * hand_over[0],
        "gc_hand_over_ms": 1000 * gc_hand_over_s,
        "chunk_loop_cpu_us": 1e6 * chunks[1] / n_chunks,
        "chunk_process_cpu_us": 1e6 * chunks[0] / n_chunks,
        "gc_chunks_ms": 1000 * (collections.seconds - gc_hand_over_s),
        "full_collections": collections.n_full,
    }


async def measure(arguments: argparse.Namespace, core: ScriptedCore) -> dict[str, Any]:
    engine = stand_in_engine(arguments.model, core, max(arguments.streams, 8))
    speech = AsyncVoxNative.from_engine(arguments.model, engine)
    freeze_heap()  # as AsyncVoxNative.start does
    await one_run(speech, core, arguments, None)  # imports and first calls
    runs = [await one_run(speech, core, arguments, None) for _ in range(arguments.repeats)]
    if arguments.profile:
        await one_run(speech, core, arguments, arguments.profile)
    engine.shutdown()
    return report(arguments, runs)


def report(arguments: argparse.Namespace, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Best, median and worst of each figure over the runs."""
    return {
        "streams": arguments.streams,
        "patches": arguments.patches,
        "step_ms": arguments.step_ms,
        "load_average": os.getloadavg()[0],
        "best": {k: round(min(r[k] for r in runs), 2) for k in runs[0]},
        "median": {k: round(statistics.median(r[k] for r in runs), 2) for k in runs[0]},
        "worst": {k: round(max(r[k] for r in runs), 2) for k in runs[0]},
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--patches", type=int, default=40)
    parser.add_argument("--step-ms", type=float, default=24.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", choices=("hand_over", "chunks"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=SHIPPED_CHECKPOINT)
    parser.add_argument("--published-format", action="store_true")
    add_arguments(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.published_format:
            arguments.model = write_published_format(Path(folder) / "checkpoint")
        config = VoxConfig.from_dir(arguments.model)
        core = ScriptedCore(folder, config.patch_samples_out)
        try:
            print(json.dumps(asyncio.run(measure(arguments, core)), indent=1))
        finally:
            core.close()


if __name__ == "__main__":
    main()
