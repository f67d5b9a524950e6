"""Two replicas behind one interface: which of them speaks cannot be heard."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from tests.e2e.test_engine_death import left_by_a_killed_front_end, wait_until_gone
from tests.e2e.test_isolation import TOLERANCE, eight_requests
from tests.engines import RecordingEngine
from tests.helpers.runtime import title
from voxnative.errors import EngineError
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


def test_a_killed_replica_ends_all_with_an_error(replicas: RecordingEngine) -> None:
    """vLLM's client gives the engine up as a whole; the last test of this engine."""
    before = psutil.Process().children(recursive=True)
    engines = [process for process in before if "EngineCore_DP" in title(process)]
    assert len(engines) == 2
    family = [p for engine in engines for p in [engine, *engine.children(recursive=True)]]
    raised: list[BaseException] = []

    def speak(seed: int) -> None:
        with pytest.raises(EngineError) as caught:
            replicas.api.synthesize("a long text " * 6, seed=seed)
        raised.append(caught.value)

    threads = [threading.Thread(target=speak, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    killed = time.monotonic()
    engines[1].kill()
    for thread in threads:
        thread.join(30)
    took_s = time.monotonic() - killed
    print(f"all six requests ended {took_s:.2f} s after the replica's death")
    assert len(raised) == 6
    assert took_s < NOTICED_S
    with pytest.raises(EngineError):
        replicas.api.synthesize("and after that")
    wait_until_gone([process.pid for process in family])


def test_a_killed_front_end_takes_both_replicas_along(random_checkpoint: Path) -> None:
    pids = left_by_a_killed_front_end(random_checkpoint, "data_parallel_size=2")
    assert len(pids) == 5, "two engines, a worker of each, and what balances their load"
    wait_until_gone(pids)
