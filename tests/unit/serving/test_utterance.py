"""A request between the queue, a scripted engine and readers of every kind."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import numpy as np
import pytest

from tests.unit.serving.scripted import CHUNK_SAMPLES, Scripted, ScriptedSpeech
from voxnative.errors import TextError
from voxnative.result import SpeechChunk
from voxnative.serving.adapters.base import SpeechCall
from voxnative.serving.http_errors import RequestFailed
from voxnative.serving.pipeline import pcm_stream, speak
from voxnative.serving.schema import SpeechBody
from voxnative.serving.settings import ServerSettings
from voxnative.serving.utterance import Utterance

CALL = SpeechCall("hi")


async def read(scripted: Scripted) -> list[np.ndarray]:
    async with aclosing(pcm_stream(scripted.server, CALL)) as chunks:
        return [chunk.samples async for chunk in chunks]


def test_all_chunks_come_in_order() -> None:
    scripted = Scripted()
    chunks = asyncio.run(read(scripted))
    assert [round(float(chunk[0]), 1) for chunk in chunks] == [0.1, 0.2, 0.3, 0.4]
    assert scripted.outcome("finished") == 1
    assert scripted.server.admission.n_running == 0


def test_leaving_early_aborts_and_frees_the_slot() -> None:
    scripted = Scripted(ScriptedSpeech(n_chunks=100, pause_s=0.01))

    async def scenario() -> None:
        async with aclosing(pcm_stream(scripted.server, CALL)) as chunks:
            async for _ in chunks:
                break
        assert scripted.speech.n_open == 0
        assert scripted.speech.n_closed_early == 1
        assert scripted.server.admission.n_running == 0

    asyncio.run(scenario())
    assert scripted.outcome("aborted") == 1


def test_a_slow_reader_holds_no_slot() -> None:
    """The engine is done long before its reader; the next request runs meanwhile."""
    scripted = Scripted(max_concurrency=1)

    async def scenario() -> None:
        async with aclosing(pcm_stream(scripted.server, CALL)) as slow:
            first = await anext(slow)
            await asyncio.sleep(0.05)
            assert scripted.server.admission.n_running == 0
            assert len(await read(scripted)) == 4
            rest = [chunk async for chunk in slow]
        assert [first.index, *(chunk.index for chunk in rest)] == [0, 1, 2, 3]

    asyncio.run(scenario())


def test_an_error_overtakes_chunks_that_wait() -> None:
    scripted = Scripted(ScriptedSpeech(fails_at=3))

    async def scenario() -> None:
        async with aclosing(pcm_stream(scripted.server, CALL)) as chunks:
            await anext(chunks)
            await asyncio.sleep(0.05)
            with pytest.raises(Exception, match="the engine failed"):
                await anext(chunks)

    asyncio.run(scenario())
    assert scripted.outcome("failed") == 1


def test_a_dead_engine_is_a_503() -> None:
    scripted = Scripted(ScriptedSpeech(fails_at=0, errored=True))
    with pytest.raises(RequestFailed) as caught:
        asyncio.run(read(scripted))
    assert caught.value.status == 503


def test_time_is_over() -> None:
    scripted = Scripted(
        ScriptedSpeech(n_chunks=100, pause_s=0.02), ServerSettings(request_timeout_s=0.1)
    )
    with pytest.raises(RequestFailed) as caught:
        asyncio.run(read(scripted))
    assert caught.value.status == 504
    assert scripted.outcome("timeout") == 1
    assert scripted.speech.n_open == 0


def test_the_queue_counts_towards_the_time() -> None:
    settings = ServerSettings(request_timeout_s=0.1)
    scripted = Scripted(ScriptedSpeech(), settings, max_concurrency=1)

    async def scenario() -> None:
        async with scripted.server.admission.slot():
            with pytest.raises(RequestFailed, match=r"within 0\.1 s"):
                await read(scripted)

    asyncio.run(scenario())


def test_a_full_queue() -> None:
    scripted = Scripted(settings=ServerSettings(max_queue=0), max_concurrency=1)

    async def scenario() -> None:
        async with scripted.server.admission.slot():
            with pytest.raises(RequestFailed, match="queue is full"):
                await read(scripted)

    asyncio.run(scenario())
    assert scripted.outcome("refused") == 1


def test_many_readers_of_which_half_leave() -> None:
    scripted = Scripted(ScriptedSpeech(n_chunks=5, pause_s=0.001), max_concurrency=8)

    async def leave() -> None:
        async with aclosing(pcm_stream(scripted.server, CALL)) as chunks:
            await anext(chunks)

    async def scenario() -> None:
        readers = [read(scripted) if i % 2 else leave() for i in range(64)]
        results = await asyncio.gather(*readers)
        assert [len(chunks) for chunks in results[1::2]] == [5] * 32

    asyncio.run(scenario())
    assert scripted.speech.n_open == 0
    assert scripted.outcome("finished") == 32
    assert scripted.outcome("aborted") == 32


@pytest.mark.parametrize("name", ["pcm", "wav", "mp3"])
def test_the_first_piece_comes_with_the_first_audio(name: str) -> None:
    scripted = Scripted(ScriptedSpeech(n_chunks=3))
    body = SpeechBody(input="hi", response_format=name, stream=True)

    async def scenario() -> list[bytes]:
        utterance = await Utterance.create(scripted.server, CALL)
        return [piece async for piece in speak(utterance, scripted.server.answer(body))]

    pieces = asyncio.run(scenario())
    assert all(pieces)
    assert len(pieces) in (3, 4)
    if name == "wav":
        assert len(pieces[0]) == 44 + 2 * CHUNK_SAMPLES


LONG = SpeechCall("this sentence is spoken as a piece of its own, since it is a long one. " * 3)


def test_a_long_text_is_one_request_of_the_queue() -> None:
    scripted = Scripted(max_concurrency=1)

    async def scenario() -> list[SpeechChunk]:
        async with aclosing(pcm_stream(scripted.server, LONG)) as chunks:
            return [chunk async for chunk in chunks]

    chunks = asyncio.run(scenario())
    assert [chunk.piece for chunk in chunks] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert sum(len(chunk.samples) for chunk in chunks) == 12 * CHUNK_SAMPLES
    assert scripted.outcome("finished") == 1
    reasons = {"reason": "stop"}
    assert scripted.registry.get_sample_value("voxnative_finish_reasons_total", reasons) == 1


@pytest.mark.parametrize("live", [True, False])
def test_a_piece_that_fails_ends_the_answer_and_is_named(live: bool) -> None:
    scripted = Scripted(ScriptedSpeech(fails_at=2))

    async def scenario() -> None:
        utterance = await Utterance.create(scripted.server, LONG, live=live)
        async with aclosing(utterance.chunks()) as chunks:
            async for _ in chunks:
                pass

    with pytest.raises(RequestFailed, match="piece 0 of 3") as caught:
        asyncio.run(scenario())
    assert caught.value.status == 500
    assert caught.value.body["error"]["code"] == "piece_failed"
    assert "sentence" not in str(caught.value)
    assert scripted.outcome("failed") == 1


def test_nothing_to_say_names_the_body_s_field() -> None:
    with pytest.raises(TextError) as caught:
        asyncio.run(Utterance.create(Scripted().server, SpeechCall("...")))
    assert caught.value.field == "input"
