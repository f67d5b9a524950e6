"""Two replicas behind one interface: which of them speaks cannot be heard."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from vllm.v1.engine.exceptions import EngineDeadError

from tests.adapters import EVERYWHERE, write_adapter
from tests.e2e.test_engine_death import left_by_a_killed_front_end, wait_until_gone
from tests.e2e.test_isolation import TOLERANCE, eight_requests
from tests.engines import RecordingEngine
from tests.helpers.runtime import title
from voxnative.errors import EngineError, ReplicaLostError
from voxnative.offline import VoxNative
from voxnative.serving.latents import latent_encoder

pytestmark = pytest.mark.full_model

NOTICED_S = 5.0


@pytest.fixture(scope="module")
def replicas(random_checkpoint: Path) -> Iterator[RecordingEngine]:
    engine = RecordingEngine(random_checkpoint, data_parallel_size=2, max_num_seqs=4, block_size=32)
    yield engine
    engine.api.close()


def test_a_seed_sounds_the_same_on_either_replica(replicas: RecordingEngine) -> None:
    call = {"text": "who is it that speaks", "seed": 11, "max_steps": 24}
    runs = [replicas.run(call)[0] for _ in range(4)]
    assert {run.replica for run in runs} == {0, 1}
    for run in runs[1:]:
        assert torch.equal(run.latents, runs[0].latents)
        assert np.array_equal(run.result.samples, runs[0].result.samples)


def test_eight_at_once_are_shared_and_do_not_mix(
    replicas: RecordingEngine, voice: Callable[[int, float], np.ndarray]
) -> None:
    calls = eight_requests(voice)
    alone = [replicas.run(call)[0] for call in calls]
    together = replicas.run(*calls)
    counts = [sum(run.replica == index for run in together) for index in range(2)]
    assert counts == [4, 4]
    for index, (got, expected) in enumerate(zip(together, alone, strict=True)):
        error = (got.latents - expected.latents).abs().max()
        print(f"{index}: replicas {expected.replica}, {got.replica}, latents {error:.2e}")
        assert error < TOLERANCE


def test_aborts_reach_the_replica_that_runs_the_request(replicas: RecordingEngine) -> None:
    api = replicas.api._speech

    async def abort_after(n_chunks: int, seed: int) -> None:
        stream = api.stream("a sentence that nobody wants to hear to its end", seed=seed)
        for _ in range(n_chunks):
            await anext(stream)
        await stream.aclose()

    async def many() -> None:
        await asyncio.gather(*(abort_after(1 + seed % 5, seed) for seed in range(12)))

    replicas.wait(many())
    flush = {"text": "flush", "seed": 0, "max_steps": 2}
    for _ in range(2):  # a later step carries the ids that ended
        replicas.run(*[flush] * 4)
    left = [ids for (ids,) in replicas.workers("speech_requests")]
    assert len(left) == 2
    assert max(map(len, left)) <= 2  # the last flush, until the next step


def test_a_recording_is_encoded_by_every_replica(
    replicas: RecordingEngine, voice: Callable[[int, float], np.ndarray]
) -> None:
    recording = voice(140, 0.5)
    config = replicas.api.config
    padded = np.pad(recording, (0, -len(recording) % config.patch_samples_in)).tobytes()
    (first,), (second,) = replicas.workers("reference_latents", padded)
    assert first == second
    encode = latent_encoder(replicas.api._speech._engine, config)

    async def encoded() -> np.ndarray:
        return await encode(recording)

    assert replicas.wait(encoded()).tobytes() == first


@dataclass
class Load:
    """Requests under way on both replicas, from threads of their own."""

    api: VoxNative
    calls: list[dict[str, Any]]
    ended: dict[int, tuple[Any, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._threads = [
            threading.Thread(target=self._speak, args=(index,)) for index in range(len(self.calls))
        ]
        for thread in self._threads:
            thread.start()

    def _speak(self, index: int) -> None:
        try:
            ending: Any = self.api.synthesize(**self.calls[index]).samples
        except EngineError as error:
            ending = error
        self.ended[index] = ending, time.monotonic()

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(120)
        assert len(self.ended) == len(self.calls), "each call ends, with audio or with an error"

    def failed(self) -> list[tuple[EngineError, float]]:
        return [(e, at) for e, at in self.ended.values() if isinstance(e, EngineError)]

    def spoken(self) -> dict[int, np.ndarray]:
        return {i: e for i, (e, _) in self.ended.items() if isinstance(e, np.ndarray)}


def load_calls(n: int) -> list[dict[str, Any]]:
    return [{"text": f"number {i} has a lot to say", "seed": i, "max_steps": 40} for i in range(n)]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def family(engine: psutil.Process) -> list[int]:
    """An engine's process and its workers."""
    return [engine.pid, *(child.pid for child in engine.children(recursive=True))]


def engine_processes() -> list[psutil.Process]:
    """The replicas' processes, by rank."""
    children = psutil.Process().children(recursive=True)
    found = {title(child): child for child in children}
    return [found[name] for name in sorted(found) if "EngineCore_DP" in name]


def engines_and_workers() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "VLLM" in title(child)]


def only_the_dead_ones_requests_failed(load: Load, died: float, alone: list[Any]) -> None:
    failed, spoken = load.failed(), load.spoken()
    assert len(failed) == len(spoken) == len(load.calls) // 2
    assert all(isinstance(error, ReplicaLostError) for error, _ in failed)
    took_s = max(at for _, at in failed) - died
    print(f"{len(failed)} requests ended {took_s:.2f} s after their replica's death")
    assert took_s < NOTICED_S
    for index, samples in spoken.items():
        expected = alone[index].result.samples
        assert samples.shape == expected.shape
        print(f"{index}: {np.abs(samples - expected).max():.2e} from a run alone")
        assert np.abs(samples - expected).max() < TOLERANCE


def nothing_is_left(engine: RecordingEngine) -> None:
    """Neither in the front end's books nor in the living replica."""
    stock = engine.api._speech._engine
    client = stock.engine_core
    wait_until(lambda: not client.reqs_in_flight)
    assert set(client.engine_inflight.values()) <= {0}
    assert len(client.engine_inflight) <= len(client.core_engines)
    assert not stock.output_processor.request_states
    assert not stock.output_processor.external_req_ids
    for _ in range(2):  # a later step carries the ids that ended
        engine.run({"text": "flush", "seed": 0, "max_steps": 2})
    (((left,),),) = (engine.workers("speech_requests"),)
    assert len(left) <= 1  # the last flush, until the next step


def test_a_killed_replica_leaves_the_other(replicas: RecordingEngine) -> None:
    """Under load, requests waiting in both engines, and a call on its way to both."""
    calls = load_calls(12)
    alone = [replicas.run(call)[0] for call in calls]
    told: list[tuple[int, int]] = []
    replicas.api._speech.watch_replicas(lambda *counts: told.append(counts))
    first, second = engine_processes()
    dead = family(second)
    core = replicas.api._speech._engine.engine_core
    load = Load(replicas.api, calls)
    wait_until(lambda: sorted(core.engine_inflight.values()) == [6, 6])
    nap = core.call_utility_all_async("collective_rpc", "nap", None, (1.0,), {})
    call = asyncio.run_coroutine_threadsafe(nap, replicas.api._loop)
    time.sleep(0.5)
    second.kill()
    died = time.monotonic()
    assert call.result(NOTICED_S) == [[0]]
    load.wait()
    only_the_dead_ones_requests_failed(load, died, alone)
    assert told == [(2, 2), (1, 2)]
    wait_until_gone(dead)
    assert first.is_running()

    nothing_is_left(replicas)
    again = replicas.run(*calls[:4])
    for got, expected in zip(again, alone, strict=False):
        assert (got.latents - expected.latents).abs().max() < TOLERANCE
    assert replicas.workers("nap", 0.0) == [[0]]
    assert replicas.wait(replicas.api._speech._engine.reset_prefix_cache())


def test_with_its_last_replica_the_engine_is_dead(replicas: RecordingEngine) -> None:
    """The last test of this engine; the one before has killed the other."""
    (last,) = engine_processes()
    dead = family(last)
    core = replicas.api._speech._engine.engine_core
    load = Load(replicas.api, load_calls(6))
    wait_until(lambda: sum(core.engine_inflight.values()) == 6)
    nap = core.call_utility_all_async("collective_rpc", "nap", None, (5.0,), {})
    call = asyncio.run_coroutine_threadsafe(nap, replicas.api._loop)
    time.sleep(0.5)
    last.kill()
    died = time.monotonic()
    with pytest.raises(EngineDeadError):
        call.result(NOTICED_S)
    load.wait()
    assert len(load.failed()) == 6
    assert not any(isinstance(error, ReplicaLostError) for error, _ in load.failed())
    assert max(at for _, at in load.failed()) - died < NOTICED_S
    with pytest.raises(EngineError):
        replicas.api.synthesize("and after that")
    with pytest.raises(EngineDeadError):
        replicas.workers("nap", 0.0)
    wait_until_gone(dead)
    replicas.api.close()
    assert not engines_and_workers()


@pytest.fixture(scope="module")
def adapters(random_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    fields: dict[str, dict[str, Any]] = {"early": {"enable_lm": True}, "late": EVERYWHERE}
    return {
        name: write_adapter(folder / name, random_checkpoint, seed=seed, **fields[name])
        for seed, name in enumerate(fields, start=1)
    }


@pytest.fixture(scope="module")
def adapted(random_checkpoint: Path, adapters: dict[str, Path]) -> Iterator[RecordingEngine]:
    """Two replicas that have one adapter from the start, and room for another."""
    engine = RecordingEngine(
        random_checkpoint,
        data_parallel_size=2,
        max_num_seqs=2,
        loras={"early": adapters["early"]},
        max_loras=2,
        max_lora_rank=16,
    )
    yield engine
    engine.api.close()


def resident(engine: RecordingEngine) -> list[list[int]]:
    """Ids of the adapters in each replica's memory."""
    core = engine.api._speech._engine.engine_core
    return [sorted(ids) for ids in engine.wait(core.call_utility_all_async("list_loras"))]


def test_an_adapter_sounds_the_same_on_either_replica(
    adapted: RecordingEngine, adapters: dict[str, Path], voice: Callable[[int, float], np.ndarray]
) -> None:
    """Given at the start or loaded later, with a recording, alone and beside the other one."""
    adapted.api.load_lora("late", adapters["late"])
    ids, same_ids = resident(adapted)
    assert ids == same_ids
    assert len(ids) == 2

    call = {"text": "who is it", "seed": 5, "max_steps": 20, "reference": (voice(140, 0.5), 16_000)}
    calls = [call, call | {"lora": "early"}, call | {"lora": "late"}]
    spoken = []
    for one in calls:
        runs = [adapted.run(one)[0] for _ in range(4)]
        assert {run.replica for run in runs} == {0, 1}
        for run in runs[1:]:
            assert torch.equal(run.latents, runs[0].latents)
            assert np.array_equal(run.result.samples, runs[0].result.samples)
        spoken.append(runs[0])
    plain, early, late = (run.latents for run in spoken)
    for one, other in ((plain, early), (plain, late), (early, late)):
        n = min(len(one), len(other))
        assert (one[:n] - other[:n]).abs().max() > 0.1

    together = adapted.run(*calls[1:], *calls[1:])
    assert sorted(run.replica for run in together) == [0, 0, 1, 1]
    for got, expected in zip(together, spoken[1:] * 2, strict=True):
        error = (got.latents - expected.latents).abs().max()
        print(f"replica {got.replica}: {error:.2e} from a run alone")
        assert error < TOLERANCE

    adapted.api.unload_lora("late")
    wait_until(lambda: resident(adapted) == [ids[:1]] * 2)


def test_a_replica_that_fails_in_a_step(
    adapted: RecordingEngine, adapters: dict[str, Path]
) -> None:
    """It sends one word that is nobody's and ends; the other keeps its adapters and gets more.

    The last test of this engine.
    """
    engine = adapted
    calls = load_calls(6)
    alone = [engine.run(call)[0] for call in calls]
    early = engine.run(calls[0] | {"lora": "early"})[0]
    core = engine.api._speech._engine.engine_core
    dead = family(engine_processes()[0])
    load = Load(engine.api, calls)
    wait_until(lambda: sorted(core.engine_inflight.values()) == [3, 3])
    died = time.monotonic()
    failing = core._call_utility_async(
        "collective_rpc", "fail", None, (), {}, engine=core.core_engines[0]
    )
    engine.wait(failing)
    engine.api.load_lora("late", adapters["late"])  # a call while it dies
    load.wait()
    only_the_dead_ones_requests_failed(load, died, alone)
    wait_until_gone(dead)
    nothing_is_left(engine)
    assert engine.workers("nap", 0.0) == [[1]]
    same, late = engine.run(calls[0] | {"lora": "early"}, calls[0] | {"lora": "late"})
    assert (same.latents - early.latents).abs().max() < TOLERANCE
    n = min(len(late.latents), len(early.latents))
    assert (late.latents[:n] - early.latents[:n]).abs().max() > TOLERANCE
    engine.api.unload_lora("early")
    engine.api.close()
    assert not engines_and_workers()


def test_a_killed_front_end_takes_both_replicas_along(random_checkpoint: Path) -> None:
    pids = left_by_a_killed_front_end(random_checkpoint, "data_parallel_size=2")
    assert len(pids) == 5, "two engines, a worker of each, and what balances their load"
    wait_until_gone(pids)
