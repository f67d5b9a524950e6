"""Two ranks hold the language models together: the same audio as one, in every mode."""

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

from tests.checkpoints import load_speech_nets
from tests.e2e.test_isolation import TOLERANCE, eight_requests
from tests.engines import RecordingEngine
from tests.helpers.runtime import title
from voxnative.config import VoxConfig
from voxnative.errors import EngineError
from voxnative.kv_memory import kv_bytes_per_position
from voxnative.serving.latents import latent_encoder

pytestmark = pytest.mark.full_model

SAME = 0.9999  # cosine of the samples
DEADLINE_S = 10


@pytest.fixture(scope="module")
def pair(random_checkpoint: Path) -> Iterator[RecordingEngine]:
    """16 positions a step, and KV on each rank for about three of eight requests."""
    per_rank = kv_bytes_per_position(VoxConfig.from_dir(random_checkpoint), "float32", 2)
    engine = RecordingEngine(
        random_checkpoint,
        tensor_parallel_size=2,
        max_num_seqs=8,
        block_size=32,
        max_model_len=128,
        max_num_batched_tokens=16,
        kv_cache_memory_bytes=10 * 32 * per_rank,
    )
    yield engine
    engine.api.close()


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_the_same_audio_chunked_and_preempted(
    pair: RecordingEngine, roomy: RecordingEngine, voice: Callable[[int, float], np.ndarray]
) -> None:
    calls = eight_requests(voice)
    alone = [roomy.run(call)[0] for call in calls]
    together = pair.run(*calls)
    ((first, second),) = pair.workers("counts")
    print(f"{first['resumed']} preempted requests were resumed")
    assert first == second
    assert first["resumed"] > 0
    for index, (got, expected) in enumerate(zip(together, alone, strict=True)):
        assert got.latents.shape == expected.latents.shape
        error = (got.latents - expected.latents).abs().max()
        samples, reference = got.result.samples, expected.result.samples
        difference, similarity = np.abs(samples - reference).max(), cosine(samples, reference)
        print(f"{index}: latents {error:.2e}, samples {difference:.2e}, cosine {similarity:.8f}")
        assert error < TOLERANCE
        assert similarity > SAME
        assert got.ranks_agree
        assert got.result.finish_reason == expected.result.finish_reason


def test_aborted_requests_leave_nothing_on_either_rank(pair: RecordingEngine) -> None:
    api = pair.api._speech

    async def abort_after(n_chunks: int, seed: int) -> None:
        stream = api.stream("a sentence that nobody wants to hear to its end", seed=seed)
        for _ in range(n_chunks):
            await anext(stream)
        await stream.aclose()

    async def many() -> None:
        await asyncio.gather(*(abort_after(1 + seed % 5, seed) for seed in range(12)))

    pair.wait(many())
    for _ in range(2):  # a later step carries the ids that ended
        pair.api.synthesize("flush", seed=0, max_steps=2)
    ((first, second),) = pair.workers("speech_requests")
    assert first == second
    assert len(first) <= 1  # the last flush, until the next step


def test_a_recording_becomes_latents(
    pair: RecordingEngine, random_checkpoint: Path, voice: Callable[[int, float], np.ndarray]
) -> None:
    config = pair.api.config
    recording = voice(140, 0.5)
    encode = latent_encoder(pair.api._speech._engine, config)

    async def encoded() -> np.ndarray:
        return await encode(recording)

    latents = pair.wait(encoded())
    padded = np.pad(recording, (0, -len(recording) % config.patch_samples_in))
    with torch.inference_mode():
        vae = load_speech_nets(random_checkpoint).audio_vae
        expected = vae.encode(torch.from_numpy(padded).reshape(1, -1))[0]
    np.testing.assert_allclose(latents.reshape(expected.shape), expected.numpy(), atol=1e-5)


def test_a_killed_rank_ends_the_engine(pair: RecordingEngine) -> None:
    """The last test of this engine."""
    processes = psutil.Process().children(recursive=True)
    (rank,) = [p for p in processes if "Worker_TP1" in title(p)]
    engine = rank.parent()
    assert engine is not None
    raised: list[BaseException] = []

    def speak() -> None:
        with pytest.raises(EngineError) as caught:
            pair.api.synthesize("a long text " * 6, seed=1)
        raised.append(caught.value)

    thread = threading.Thread(target=speak)
    thread.start()
    time.sleep(0.5)
    rank.kill()
    started = time.monotonic()
    thread.join(DEADLINE_S)
    print(f"error after {time.monotonic() - started:.2f} s: {raised}")
    assert len(raised) == 1
    _, left = psutil.wait_procs([rank, engine], timeout=3 * DEADLINE_S)
    assert not left
