"""A long text between a scripted engine and its reader: order, bounds, second attempts, errors."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from voxnative.config import VoxConfig
from voxnative.errors import EngineError, PieceError, ReplicaLostError
from voxnative.long_request import plan_long
from voxnative.long_speech import LongRun
from voxnative.result import SpeechChunk
from voxnative.speech_request import RequestBuilder, SpeechRequest
from voxnative.tokenizer import TextTokenizer

RATE_HZ = 16_000
PATCH = 2_560
SENTENCES = [f"sentence {name} is spoken here." for name in ("one", "two", "three", "four", "five")]
TEXT = " ".join(SENTENCES)
SEED = 5


@dataclass
class ScriptedEngine:
    """Speaks two patches a request; their level tells how many letters the request had.

    Attributes:
        trouble: (number of the request, what happens), counted from 0 in the order of starts.
        meets: the second request waits until it is not alone, so that a slow machine cannot keep
            requests apart that run at once.
    """

    trouble: dict[int, str] = field(default_factory=dict)
    meets: bool = False
    n_patches: int = 2
    n_requests: int = 0
    n_open: int = 0
    most_open: int = 0
    n_aborted: int = 0

    def run(self, request: SpeechRequest) -> ScriptedRun:
        self.n_requests += 1
        n_tokens = len(request.prompt.token_ids)
        number = self.n_requests - 1
        return ScriptedRun(
            self, n_tokens, self.trouble.get(number, ""), waits=self.meets and number == 1
        )


@dataclass
class ScriptedRun:
    engine: ScriptedEngine
    n_tokens: int
    trouble: str
    waits: bool
    finish_reason: str | None = None

    async def chunks(self) -> AsyncGenerator[SpeechChunk, None]:
        engine = self.engine
        engine.n_open += 1
        engine.most_open = max(engine.most_open, engine.n_open)
        try:
            while self.waits and engine.most_open == 1:
                await asyncio.sleep(0.001)
            for index in range(engine.n_patches):
                await asyncio.sleep(0.001)
                if self.trouble == f"fails at {index}":
                    raise EngineError("it failed")
                if self.trouble == "loses its replica":
                    raise ReplicaLostError("try again")
                samples = np.full(PATCH, self.n_tokens / 1000, np.float32)
                yield SpeechChunk(samples, RATE_HZ, index)
            self.finish_reason = self.trouble or "stop"
        except (GeneratorExit, asyncio.CancelledError):
            engine.n_aborted += 1
            raise
        finally:
            engine.n_open -= 1


@pytest.fixture(scope="module")
def builder(tiny_config: VoxConfig, tiny_tokenizer: TextTokenizer) -> RequestBuilder:
    return RequestBuilder(tiny_config, tiny_tokenizer, context_len=512)


def make(builder: RequestBuilder, engine: ScriptedEngine, **arguments: Any) -> LongRun:
    arguments = {"text": TEXT, "seed": SEED, "piece_tokens": 32, **arguments}
    request = plan_long(builder, **arguments)
    return LongRun(engine.run, request, RATE_HZ, time.perf_counter())


async def read(run: LongRun) -> list[SpeechChunk]:
    async with aclosing(run.chunks()) as chunks:
        return [chunk async for chunk in chunks]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("joint", ["separate", "continue", "reference"])
@pytest.mark.parametrize("lookahead", [0, 1, 3])
def test_everything_comes_in_order(
    builder: RequestBuilder, joint: str, lookahead: int, live: bool
) -> None:
    at_once = lookahead > 0 and not live and joint != "continue"
    engine = ScriptedEngine(meets=at_once)
    run = make(builder, engine, joint=joint, lookahead=lookahead, live=live)
    result = asyncio.run(run.result())
    assert len(result.samples) == 10 * PATCH
    assert [piece.index for piece in result.pieces] == [0, 1, 2, 3, 4]
    assert [TEXT[piece.start : piece.end] for piece in result.pieces] == SENTENCES
    assert [piece.start_s for piece in result.pieces] == pytest.approx([0, 0.32, 0.64, 0.96, 1.28])
    assert {piece.seed for piece in result.pieces} == {SEED}
    assert [piece.is_joined for piece in result.pieces] == [False, *[joint != "separate"] * 4]
    assert (result.finish_reason, result.n_patches, result.n_attempts) == ("stop", 10, 1)
    assert engine.most_open > 1 if at_once else engine.most_open == 1
    assert engine.most_open <= lookahead + 1


def test_chunks_say_their_piece(builder: RequestBuilder) -> None:
    chunks = asyncio.run(read(make(builder, ScriptedEngine())))
    assert [chunk.index for chunk in chunks] == list(range(10))
    assert [chunk.piece for chunk in chunks] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_live_samples_come_before_the_piece_is_complete(builder: RequestBuilder) -> None:
    async def open_at_first_chunk(live: bool) -> int:
        engine = ScriptedEngine()
        async with aclosing(make(builder, engine, live=live, lookahead=0).chunks()) as chunks:
            await anext(chunks)
            return engine.n_open

    assert asyncio.run(open_at_first_chunk(live=True)) == 1
    assert asyncio.run(open_at_first_chunk(live=False)) == 0


@pytest.mark.parametrize("lookahead", [0, 2])
def test_a_reader_that_stops_holds_the_engine_back(builder: RequestBuilder, lookahead: int) -> None:
    async def scenario() -> None:
        engine = ScriptedEngine()
        async with aclosing(make(builder, engine, lookahead=lookahead).chunks()) as chunks:
            await anext(chunks)
            await asyncio.sleep(0.05)
            assert engine.n_requests == lookahead + 1
        assert engine.n_open == 0

    asyncio.run(scenario())


def test_leaving_early_aborts_what_runs(builder: RequestBuilder) -> None:
    async def scenario() -> None:
        engine = ScriptedEngine(n_patches=50)
        async with aclosing(make(builder, engine, live=True).chunks()) as chunks:
            await anext(chunks)
        assert (engine.n_open, engine.n_aborted) == (0, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("trouble", ["fails at 0", "fails at 1", "length"])
def test_a_piece_that_fails_is_spoken_again_with_another_seed(
    builder: RequestBuilder, trouble: str
) -> None:
    engine = ScriptedEngine({2: trouble})
    result = asyncio.run(make(builder, engine, lookahead=0).result())
    assert len(result.samples) == 10 * PATCH
    assert [piece.n_attempts for piece in result.pieces] == [1, 1, 2, 1, 1]
    assert [piece.seed for piece in result.pieces] == [SEED, SEED, SEED + 1, SEED, SEED]
    assert result.n_attempts == 2


@pytest.mark.parametrize("trouble", ["fails at 1", "length"])
@pytest.mark.parametrize("joint", ["separate", "continue"])
def test_a_piece_that_fails_twice_is_reported(
    builder: RequestBuilder, trouble: str, joint: str
) -> None:
    engine = ScriptedEngine({2: trouble, 3: trouble})
    run = make(builder, engine, joint=joint, lookahead=0)
    chunks: list[SpeechChunk] = []

    async def scenario() -> None:
        async for chunk in run.chunks():
            chunks.append(chunk)

    with pytest.raises(PieceError, match="piece 2 of 5") as caught:
        asyncio.run(scenario())
    error = caught.value
    assert (error.index, TEXT[error.start : error.end]) == (2, SENTENCES[2])
    assert SENTENCES[2] not in str(error)
    assert [chunk.piece for chunk in chunks] == [0, 0, 1, 1]  # everything before it
    assert [record.index for record in run.records] == [0, 1]
    # The caller goes on where it ended.
    rest = asyncio.run(make(builder, ScriptedEngine(), first_piece=error.index).result())
    assert [piece.index for piece in rest.pieces] == [2, 3, 4]


def test_a_lost_replica_is_told_and_not_covered_by_another_seed(builder: RequestBuilder) -> None:
    engine = ScriptedEngine({0: "loses its replica"})
    with pytest.raises(ReplicaLostError):
        asyncio.run(make(builder, engine, text=SENTENCES[0]).result())
    assert engine.n_requests == 1
    engine = ScriptedEngine({2: "loses its replica"})
    with pytest.raises(PieceError, match="piece 2 of 5") as caught:
        asyncio.run(make(builder, engine, lookahead=0).result())
    assert caught.value.index == 2
    assert isinstance(caught.value.__cause__, ReplicaLostError)
    assert engine.n_requests == 3


def test_what_was_heard_is_not_said_twice(builder: RequestBuilder) -> None:
    """Live: a second attempt only before the first sample; an overlong piece stays as it is."""
    result = asyncio.run(make(builder, ScriptedEngine({1: "fails at 0"}), live=True).result())
    assert [piece.n_attempts for piece in result.pieces] == [1, 2, 1, 1, 1]
    with pytest.raises(PieceError, match="piece 1 of 5"):
        asyncio.run(make(builder, ScriptedEngine({1: "fails at 1"}), live=True).result())
    result = asyncio.run(make(builder, ScriptedEngine({1: "length"}), live=True).result())
    assert [piece.finish_reason for piece in result.pieces] == ["stop", "length", *["stop"] * 3]
    assert result.finish_reason == "length"


def test_silence_is_an_end_like_another(builder: RequestBuilder) -> None:
    result = asyncio.run(make(builder, ScriptedEngine({3: "silence"}), lookahead=0).result())
    assert result.finish_reason == "silence"
    assert result.n_attempts == 1


def test_the_cap_ends_the_whole(builder: RequestBuilder) -> None:
    engine = ScriptedEngine()
    run = make(builder, engine, max_steps=5, lookahead=0)
    result = asyncio.run(run.result())
    assert (len(result.samples), result.n_patches, result.n_max_patches) == (5 * PATCH, 5, 5)
    assert result.finish_reason == "length"
    assert [piece.index for piece in result.pieces] == [0, 1]  # the third was cut short
    assert engine.n_open == 0


def test_a_cap_on_a_single_piece_is_its_own(builder: RequestBuilder) -> None:
    """The engine ends it; whether by the cap or in time is the engine's word."""
    for reason in ("stop", "length"):
        run = make(builder, ScriptedEngine({0: reason}), text="yes.", max_steps=2, live=True)
        result = asyncio.run(run.result())
        assert (result.finish_reason, result.n_patches, len(result.pieces)) == (reason, 2, 1)


def test_an_error_of_a_single_piece_is_not_wrapped(builder: RequestBuilder) -> None:
    engine = ScriptedEngine({0: "fails at 0", 1: "fails at 1"})
    with pytest.raises(EngineError, match="it failed"):
        asyncio.run(make(builder, engine, text="yes.", live=True).result())


@pytest.mark.parametrize("live", [False, True])
def test_a_single_piece_is_made_by_its_reader(builder: RequestBuilder, live: bool) -> None:
    """No task stands between the two; a second attempt and an abort are as with many pieces."""

    async def scenario() -> None:
        engine = ScriptedEngine({0: "fails at 0"})
        run = make(builder, engine, text="yes.", live=live)
        async with aclosing(run.chunks()) as chunks:
            await anext(chunks)
            assert len(asyncio.all_tasks()) == 1
            assert len([chunk async for chunk in chunks]) == 1
        assert (run.records[0].n_attempts, run.records[0].n_patches) == (2, 2)
        assert run.records[0].duration_s == 2 * PATCH / RATE_HZ

        engine = ScriptedEngine(n_patches=50)
        async with aclosing(make(builder, engine, text="yes.", live=True).chunks()) as chunks:
            await anext(chunks)
        assert (engine.n_open, engine.n_aborted) == (0, 1)

    asyncio.run(scenario())


def test_joints_do_not_click(builder: RequestBuilder) -> None:
    """Levels differ from piece to piece; at the joint both sides are near zero."""
    samples = asyncio.run(make(builder, ScriptedEngine()).result()).samples
    for joint in range(2 * PATCH, 10 * PATCH, 2 * PATCH):
        assert np.abs(samples[joint - 1 : joint + 1]).max() < 1e-4
        assert abs(samples[joint + PATCH]) > 0.01


@pytest.mark.parametrize("joint", ["separate", "continue", "reference"])
def test_memory_is_flat(builder: RequestBuilder, joint: str) -> None:
    """Forty pieces of a third of a second; what is kept must not grow with them."""
    text = " ".join(SENTENCES * 8)

    async def peaks() -> list[int]:
        run = make(builder, ScriptedEngine(), text=text, joint=joint, lookahead=1)
        found = []
        async for chunk in run.chunks():
            if chunk.piece in (8, 38) and chunk.index % 2 == 0:
                gc.collect()
                found.append(tracemalloc.get_traced_memory()[0])
        return found

    tracemalloc.start()
    try:
        early, late = asyncio.run(peaks())
    finally:
        tracemalloc.stop()
    audio_bytes = 30 * 2 * PATCH * 4
    grown = late - early
    print(f"{grown / 1024:.0f} KiB after 30 pieces of {audio_bytes / 1024:.0f} KiB of audio")
    assert grown < audio_bytes / 10
