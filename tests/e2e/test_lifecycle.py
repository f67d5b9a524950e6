"""Requests end exactly once and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.inputs.engine import tokens_input

from tests.engines import RecordingEngine
from voxnative.errors import EngineError, InvalidRequestError

N_ABORTED = 200
SPEECH = {"cfg": 2.0, "timesteps": 10, "temperature": 1.0}
N_WARM = 20


async def abort_after(engine: RecordingEngine, seed: int, n_chunks: int) -> int:
    """Start a request and leave it after ``n_chunks``; returns the chunks that came."""
    request = await engine.api._speech.prepare(
        "a request that nobody hears to its end", seed=seed, max_steps=60
    )
    got = 0
    async with aclosing(engine.api._speech.run(request).chunks()) as chunks:
        async for _ in chunks:
            got += 1
            if got >= n_chunks:
                break
    return got


async def cancel_after(engine: RecordingEngine, seed: int, delay_s: float) -> None:
    """Cancel a request's task, also before it was ever scheduled."""
    task = asyncio.create_task(abort_after(engine, seed, 60))
    await asyncio.sleep(delay_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def abort_many(engine: RecordingEngine, n_requests: int, rng: random.Random) -> None:
    gate = asyncio.Semaphore(12)  # more than fit into a batch: some abort while they wait

    async def one(seed: int) -> None:
        async with gate:
            if seed % 4 == 0:
                await cancel_after(engine, seed, rng.uniform(0, 0.15))
            else:
                await abort_after(engine, seed, rng.randint(1, 12))

    await asyncio.gather(*(one(seed) for seed in range(n_requests)))


async def settled(engine: RecordingEngine) -> list[str]:
    """Requests with state in the worker, once the aborts have reached it."""
    api = engine.api._speech
    await api.synthesize("flush", seed=0, max_steps=4)  # a step carries the finished ids
    (left,) = await api._engine.collective_rpc("speech_requests")
    await api.synthesize("flush", seed=0, max_steps=4)
    (left,) = await api._engine.collective_rpc("speech_requests")
    return left


def test_two_hundred_aborts_leave_nothing(roomy: RecordingEngine) -> None:
    rng = random.Random(0)
    roomy.wait(abort_many(roomy, N_WARM, rng))
    warm_bytes = roomy.rpc("resident_bytes")
    roomy.rpc("forget")
    roomy.wait(abort_many(roomy, N_ABORTED - N_WARM, rng))
    left = roomy.wait(settled(roomy))
    roomy.rpc("forget")
    end_bytes = roomy.rpc("resident_bytes")
    growth = end_bytes / warm_bytes - 1
    print(f"resident {warm_bytes / 2**20:.1f} -> {end_bytes / 2**20:.1f} MiB ({growth:+.2%})")
    assert len(left) <= 1  # the flush request itself, until the next step
    assert roomy.api._speech._engine.output_processor.request_states == {}
    assert growth < 0.01


def test_bad_input_never_reaches_the_engine(roomy: RecordingEngine) -> None:
    sent = len(roomy.rpc("speech_requests"))
    for arguments in (
        {"text": ""},
        {"text": "x" * 5000},
        {"text": "hello", "cfg": 99},
        {"text": "hello", "timesteps": 1},
        {"text": "hello", "seed": -1},
        {"text": "hello", "temperature": float("nan")},
        {"text": "hello", "prompt_text": "without a prompt"},
        {"text": "hello", "reference": b"no audio"},
        {"text": "hello", "reference": (np.zeros((5, 0), np.float32), 16_000)},
    ):
        with pytest.raises(InvalidRequestError):
            roomy.api.synthesize(**arguments)
    with pytest.raises(InvalidRequestError) as caught:
        roomy.api.synthesize_batch(["fine", {"text": "hello", "cfg": 99}])
    assert caught.value.__notes__ == ["in item 1 of the batch"]
    for items in ("one text", [5], [{"seed": 2}]):
        with pytest.raises(InvalidRequestError, match="items"):
            roomy.api.synthesize_batch(items)
    assert len(roomy.rpc("speech_requests")) <= sent


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({}, "extra_args"),
        ({"extra_args": {"voxnative": "x"}, "temperature": 0, "seed": 1}, "extra_args"),
        (
            {"extra_args": {"voxnative": {**SPEECH, "cfg": "2"}}, "temperature": 0, "seed": 1},
            "extra_args",
        ),
        ({"extra_args": {"voxnative": SPEECH}, "temperature": 0, "seed": 1, "n": 2}, "n"),
        ({"extra_args": {"voxnative": SPEECH}, "temperature": 0, "max_tokens": 8}, "seed"),
        ({"extra_args": {"voxnative": SPEECH}, "temperature": 1.0, "seed": 1}, "temperature"),
        (
            {
                "extra_args": {"voxnative": SPEECH},
                "temperature": 0,
                "seed": 1,
                "prompt_logprobs": 1,
            },
            "prompt_logprobs",
        ),
    ],
)
def test_a_foreign_request_is_refused_and_the_engine_lives(
    roomy: RecordingEngine, parameters: dict[str, Any], name: str
) -> None:
    """What a raw text completion would send is a client's error, not an engine's end."""

    async def send() -> None:
        outputs = roomy.api._speech._engine.generate(
            tokens_input([5, 6, 7]), SamplingParams(**parameters), "foreign"
        )
        async for _ in outputs:
            pass

    with pytest.raises(VLLMValidationError, match=name):
        roomy.wait(send())
    assert roomy.api.synthesize("still alive", seed=1, max_steps=4).n_patches == 4


def test_numpy_numbers_are_numbers(roomy: RecordingEngine) -> None:
    text = "numbers of another library"
    plain = roomy.api.synthesize(text, seed=7, cfg=2.0, timesteps=4, max_steps=5)
    odd = roomy.api.synthesize(
        text, seed=np.int64(7), cfg=np.float32(2), timesteps=np.int64(4), max_steps=np.int64(5)
    )
    assert np.array_equal(plain.samples, odd.samples)
    assert roomy.api._speech._engine.output_processor.request_states == {}


def test_a_value_that_is_not_finite_harms_nobody_else(roomy: RecordingEngine) -> None:
    """KV blocks of a request full of NaN serve the next one."""
    text = "the same text before and after"
    before = roomy.api.synthesize(text, seed=7, max_steps=8)

    async def poisoned() -> None:
        speech = roomy.api._speech
        request = await speech.prepare("poison", reference=(np.ones(16_000), 16_000), seed=1)
        request.prompt.spans[0].samples[:] = np.nan
        await speech.run(request).result()

    with contextlib.suppress(EngineError):
        roomy.wait(poisoned())
    for _ in range(3):
        after = roomy.api.synthesize(text, seed=7, max_steps=8)
        assert np.array_equal(before.samples, after.samples)


def test_a_stream_dropped_on_the_loops_thread_does_not_block_it(roomy: RecordingEngine) -> None:
    streams = [roomy.api.stream("a stream that is dropped", seed=3, max_steps=60)]
    next(streams[0])

    async def drop() -> None:
        streams.clear()
        gc.collect()

    roomy.wait(drop())
    assert roomy.api.synthesize("still alive", seed=1, max_steps=4).n_patches == 4


def test_closing_a_stream_aborts_its_request(roomy: RecordingEngine) -> None:
    stream = roomy.api.stream("a stream that is closed early", seed=3, max_steps=60)
    first = next(stream)
    assert first.index == 0
    stream.close()
    assert len(roomy.wait(settled(roomy))) <= 1


def test_a_closed_engine_says_so(roomy: RecordingEngine) -> None:
    from voxnative.async_api import AsyncVoxNative

    speech = AsyncVoxNative(roomy.directory)
    with pytest.raises(EngineError, match="not running"):
        asyncio.run(speech.synthesize("hello"))
