"""Speed with adapters at a fixed number of streams, and requests among others with adapters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from tests.perf.full_size import write_random_adapter
from tests.perf.load import TEXT, StartStream, summary, together
from tests.perf.serving_load import engine, warm_up
from voxnative.async_api import AsyncVoxNative
from voxnative.config import VoxConfig

N_STREAMS = 32
IN_USE = (0, 1, 8, 32)  # adapters of the streams, which take them in turn
N_WARM_UP_PATCHES = 8


def streams_with(speech: AsyncVoxNative, n_patches: int, loras: list[str]) -> StartStream:
    """Streams of exactly `n_patches` where the stop head is zero."""

    async def start(seed: int) -> AsyncIterator[int]:
        lora = loras[seed % len(loras)] if loras else None
        arguments = _arguments(seed, n_patches)
        async for chunk in speech.stream(TEXT, lora=lora, **arguments):
            yield len(chunk.samples)

    return start


def _arguments(seed: int, n_patches: int) -> dict[str, Any]:
    steps = {"max_steps": n_patches, "min_steps": n_patches - 1}
    return {"seed": seed, "cfg": 2.0, "timesteps": 10, "max_silence_s": 0} | steps


async def lora_report(
    checkpoint: Path,
    settings: dict[str, Any],
    adapters: Path,
    *,
    ranks: list[int],
    n_patches: int,
    n_repeats: int,
    recording_worker: str | None,
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """An engine without LoRA, then one for each rank with room for all adapters.

    Args:
        checkpoint: whose stop head is zero.
        settings: of the engines.
        adapters: where random adapters are written.
        ranks: of the adapters.
        n_patches: of a stream.
        n_repeats: runs of each kind; the one with the median total counts.
        recording_worker: worker that keeps latents; None leaves the comparisons out.
        keep: gets what there is after each measurement.
    """
    settings = settings | {"max_num_seqs": N_STREAMS}
    if recording_worker is not None:
        settings["worker_cls"] = recording_worker
    report: dict[str, Any] = {"streams": N_STREAMS}
    async with engine(checkpoint, settings) as (speech, _):
        report["without LoRA"] = await _speed(speech, n_patches, n_repeats, [])
        keep(report)
    for rank in ranks:
        found: dict[str, Any] = {}
        report[f"rank {rank}"] = found
        async with engine(checkpoint, _with_lora(settings, rank)) as (speech, ready_s):
            found["ready_s"] = round(ready_s, 1)
            names = await _load_adapters(speech, checkpoint, adapters, rank)
            for n in IN_USE:
                found[f"{n} adapters"] = await _speed(speech, n_patches, n_repeats, names[:n])
                keep(report)
            if recording_worker is not None:
                found["among others"] = await _among_others(speech, names, min(24, n_patches))
                keep(report)
    return report


async def lora_isolation(
    checkpoint: Path, settings: dict[str, Any], adapters: Path, *, rank: int
) -> dict[str, Any]:
    """An engine with all adapters: requests with them alone and among others, no speed.

    Args:
        checkpoint, adapters, rank: as `lora_report`.
        settings: of the engine, with a recording worker.
    """
    settings = _with_lora(settings | {"max_num_seqs": N_STREAMS}, rank)
    async with engine(checkpoint, settings) as (speech, _):
        names = await _load_adapters(speech, checkpoint, adapters, rank)
        return await _among_others(speech, names, 24)


def _with_lora(settings: dict[str, Any], rank: int) -> dict[str, Any]:
    return settings | {"enable_lora": True, "max_loras": max(IN_USE), "max_lora_rank": rank}


async def _load_adapters(
    speech: AsyncVoxNative, checkpoint: Path, adapters: Path, rank: int
) -> list[str]:
    """Write random adapters and load them; their names."""
    config = VoxConfig.from_dir(checkpoint)
    names = [f"adapter {i}" for i in range(max(IN_USE))]
    for seed, name in enumerate(names):
        directory = adapters / f"{rank}-{seed}"
        await asyncio.to_thread(write_random_adapter, directory, config, seed=seed, rank=rank)
        await speech.load_lora(name, directory)
    return names


async def _speed(
    speech: AsyncVoxNative, n_patches: int, n_repeats: int, loras: list[str]
) -> dict[str, Any]:
    await warm_up(streams_with(speech, min(N_WARM_UP_PATCHES, n_patches), loras), N_STREAMS)
    start, rate_hz = streams_with(speech, n_patches, loras), speech.sample_rate_hz
    runs = [summary(await together(start, N_STREAMS, 1000 * i), rate_hz) for i in range(n_repeats)]
    runs.sort(key=lambda run: run.get("total_real_time_factor", 0.0))
    print(len(loras), "adapters", runs[len(runs) // 2], flush=True)
    return runs[len(runs) // 2]


async def _among_others(speech: AsyncVoxNative, names: list[str], n_patches: int) -> dict[str, Any]:
    """Requests alone, then fed back their own latents among others with other adapters."""
    rpc = speech._engine.collective_rpc
    loras = {9000: None, 9001: names[0], 9002: names[1], 9003: names[-1]}

    async def speak(seed: int, lora: str | None) -> None:
        await speech.synthesize(TEXT, lora=lora, **_arguments(seed, n_patches))

    await rpc("record", args=(False,))
    for seed, lora in loras.items():
        await speak(seed, lora)
    await rpc("record", args=(True,))
    others = [speak(i, names[i % len(names)]) for i in range(N_STREAMS - len(loras))]
    await asyncio.gather(*(speak(seed, lora) for seed, lora in loras.items()), *others)
    (compared,) = await rpc("compare")
    # The same request without its adapter, fed back the same latents: what the adapter changes.
    await rpc("record", args=(False,))
    await speak(9001, names[0])
    await rpc("record", args=(True,))
    await speak(9001, None)
    (changed,) = await rpc("compare")
    await rpc("end_recording")
    found = {
        "requests": compared,
        "cosine_min": min(c["cosine_min"] for c in compared.values()),
        "cosine_min_without_the_adapter": changed["9001"]["cosine_min"],
    }
    print("among others", found, flush=True)
    return found
