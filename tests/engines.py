"""Engines shared by a whole session: starting one costs half a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from tests.checkpoints import write_checkpoint
from voxnative.config import VoxConfig
from voxnative.kv_memory import kv_bytes_per_position
from voxnative.offline import VoxNative
from voxnative.result import SpeechResult

T = TypeVar("T")
RECORDING_WORKER = "tests.recording_worker.RecordingWorker"


@dataclass(frozen=True)
class Recorded:
    """One finished request and what the worker kept of it."""

    result: SpeechResult
    latents: torch.Tensor  # [n, P, D]
    batch_sizes: list[int]  # rows of the batch that made each patch
    cached_tokens: int  # prompt positions taken from the prefix cache
    scheduled_tokens: list[int]  # positions computed in each step that ran it
    replica: int  # data-parallel replica that ran it
    ranks_agree: bool  # all of the replica's ranks kept the same bits


class RecordingEngine:
    """VoxNative with the recording worker; adds staggered arrivals and the records."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.api = VoxNative(directory, worker_cls=RECORDING_WORKER, **settings)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.api._wait(coroutine)

    def rpc(self, method: str, *args: Any) -> Any:
        (answer,) = self.wait(self.api._speech._engine.collective_rpc(method, args=args))
        return answer

    def workers(self, method: str, *args: Any) -> list[list[Any]]:
        """Answers of all workers: a list of replicas, each a list of tensor-parallel ranks."""
        core = self.api._speech._engine.engine_core
        call = core.call_utility_all_async("collective_rpc", method, None, args, {})
        return self.wait(call)

    def run(self, *calls: dict[str, Any], delays_s: list[float] | None = None) -> list[Recorded]:
        """Run the calls together, each after its delay, and fetch their records."""
        delays = delays_s or [0.0] * len(calls)
        finished = self.wait(self._gather(list(zip(calls, delays, strict=True))))
        return [self._recorded(request_id, result) for request_id, result in finished]

    async def _gather(
        self, calls: list[tuple[dict[str, Any], float]]
    ) -> list[tuple[str, SpeechResult]]:
        async def one(call: dict[str, Any], delay_s: float) -> tuple[str, SpeechResult]:
            request = await self.api._speech.prepare(**call)
            await asyncio.sleep(delay_s)
            run = self.api._speech.run(request)
            return run.request_id, await run.result()

        return await asyncio.gather(*(one(call, delay) for call, delay in calls))

    def _recorded(self, request_id: str, result: SpeechResult) -> Recorded:
        answers = self.workers("record", request_id)
        ((replica, (record, *others)),) = (
            (index, ranks) for index, ranks in enumerate(answers) if ranks[0] is not None
        )
        return Recorded(
            result,
            torch.tensor(record["latents"]),
            record["batch_sizes"],
            record["cached_tokens"],
            record["scheduled_tokens"],
            replica,
            all(other == record for other in others),
        )


@pytest.fixture(scope="session")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("random") / "checkpoint")


@pytest.fixture(scope="session")
def roomy(random_checkpoint: Path) -> Iterator[RecordingEngine]:
    """Random weights, prefix caching on, room for everything; blocks of 32 positions."""
    engine = RecordingEngine(random_checkpoint, max_num_seqs=8, block_size=32)
    yield engine
    engine.api.close()


@pytest.fixture(scope="session")
def cramped(random_checkpoint: Path) -> Iterator[RecordingEngine]:
    """The same weights; 16 positions a step, and KV for about three of eight requests."""
    config = VoxConfig.from_dir(random_checkpoint)
    engine = RecordingEngine(
        random_checkpoint,
        max_num_seqs=8,
        block_size=32,
        max_model_len=128,
        max_num_batched_tokens=16,
        kv_cache_memory_bytes=10 * 32 * kv_bytes_per_position(config, "float32"),
    )
    yield engine
    engine.api.close()


@pytest.fixture(scope="session")
def speaking() -> Iterator[RecordingEngine]:
    """The shipped, trained checkpoint."""
    import voxnative

    directory = Path(voxnative.__file__).parent / "checkpoints" / "tiny"
    engine = RecordingEngine(directory)
    yield engine
    engine.api.close()


@pytest.fixture(scope="session")
def voice() -> Callable[[int, float], np.ndarray]:
    """A maker of voice-like recordings: ``voice(pitch_hz, seconds)`` at 16 kHz."""

    def make(pitch_hz: int, seconds: float) -> np.ndarray:
        t = np.arange(round(seconds * 16_000)) / 16_000
        harmonics = sum(np.sin(2 * np.pi * k * pitch_hz * t) / k for k in range(1, 7))
        return (0.1 * harmonics * (1 + 0.3 * np.sin(2 * np.pi * 3 * t))).astype(np.float32)

    return make
