"""Chunks that wait for their reader come as one piece; the bytes are those of chunks one by one."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator

import numpy as np
import pytest

from tests.unit.serving.scripted import CHUNK_SAMPLES, Scripted, ScriptedSpeech
from voxnative.result import SpeechChunk
from voxnative.serving import sse
from voxnative.serving.adapters.base import SpeechCall
from voxnative.serving.formats.registry import FORMATS
from voxnative.serving.pipeline import MOST_TOGETHER, _encoded, _rest, speak
from voxnative.serving.sample_chain import SampleChain
from voxnative.serving.schema import SpeechBody
from voxnative.serving.utterance import Arrivals, Utterance

CALL = SpeechCall("hi")
N_CHUNKS = 21
MODEL_HZ = 48_000


def speech(n_chunks: int = N_CHUNKS, n_samples: int = 7_680) -> list[SpeechChunk]:
    """Noise that swells and fades, and is louder than full scale at its loudest."""
    noise = np.random.default_rng(7).standard_normal(n_chunks * n_samples).astype(np.float32)
    noise *= 0.4 * np.sin(np.linspace(0, np.pi, len(noise), dtype=np.float32))
    parts = np.split(noise, n_chunks)
    return [SpeechChunk(part, MODEL_HZ, index) for index, part in enumerate(parts)]


def encoded(name: str, rate_hz: int, speed: float, sizes: list[int]) -> bytes:
    """All chunks, handed over so many at a time."""
    chain = SampleChain(MODEL_HZ, rate_hz, speed)
    encoder = FORMATS[name].encoder(rate_hz, False)
    parts, left = [encoder.start()], speech()
    for n in sizes:
        taken, left = left[:n], left[n:]
        parts.append(_encoded(encoder, chain, taken))
    assert not left
    return b"".join([*parts, _rest(encoder, chain)])


@pytest.mark.parametrize(("rate_hz", "speed"), [(48_000, 1.0), (24_000, 1.0), (48_000, 1.3)])
@pytest.mark.parametrize("name", FORMATS)
def test_bytes_do_not_depend_on_what_came_together(name: str, rate_hz: int, speed: float) -> None:
    one_by_one = encoded(name, rate_hz, speed, [1] * N_CHUNKS)
    assert len(one_by_one) > 1000
    assert encoded(name, rate_hz, speed, [1, 8, 8, 3, 1]) == one_by_one


def read_slowly(scripted: Scripted, sse_events: bool = False) -> list[bytes]:
    """The pieces of an answer whose reader pauses after the first until the engine is done."""
    body = SpeechBody(
        input="hi",
        response_format="wav",
        stream=True,
        stream_format="sse" if sse_events else "audio",
    )

    async def scenario() -> list[bytes]:
        utterance = await Utterance.create(scripted.server, CALL)
        pieces: AsyncGenerator[bytes, None] = speak(utterance, scripted.server.answer(body))
        if sse_events:
            pieces = sse.events(pieces, utterance)
        first = await anext(pieces)
        while scripted.server.admission.n_running:
            await asyncio.sleep(0.01)
        return [first, *[piece async for piece in pieces]]

    return asyncio.run(scenario())


def expected_samples(n_chunks: int) -> np.ndarray:
    levels = np.repeat(0.1 * np.arange(1, n_chunks + 1, dtype=np.float32), CHUNK_SAMPLES)
    return np.round(np.clip(levels, -1, 1) * 32767).astype("<i2")


def test_a_slow_reader_gets_what_waits_in_few_pieces() -> None:
    scripted = Scripted(ScriptedSpeech(n_chunks=N_CHUNKS))
    first, *rest = read_slowly(scripted)
    assert first.startswith(b"RIFF")
    n_bytes = 2 * CHUNK_SAMPLES
    most, left = divmod(N_CHUNKS - (len(first) - 44) // n_bytes, MOST_TOGETHER)
    assert [len(piece) // n_bytes for piece in rest] == [MOST_TOGETHER] * most + [left] * bool(left)
    samples = np.frombuffer((first + b"".join(rest))[44:], "<i2")
    np.testing.assert_array_equal(samples, expected_samples(N_CHUNKS))
    assert scripted.outcome("finished") == 1


def test_events_of_what_waits_are_few_and_hold_everything() -> None:
    scripted = Scripted(ScriptedSpeech(n_chunks=N_CHUNKS))
    events = [json.loads(event.removeprefix(b"data: ")) for event in read_slowly(scripted, True)]
    assert [event["type"] for event in events[:-1]] == ["speech.audio.delta"] * (len(events) - 1)
    assert len(events) <= 2 + -(-N_CHUNKS // MOST_TOGETHER)
    assert events[-1]["usage"]["output_tokens"] == N_CHUNKS
    audio = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    np.testing.assert_array_equal(np.frombuffer(audio[44:], "<i2"), expected_samples(N_CHUNKS))


def test_a_prompt_reader_gets_each_chunk_when_it_comes() -> None:
    scripted = Scripted(ScriptedSpeech(n_chunks=4, pause_s=0.02))

    async def scenario() -> list[int]:
        utterance = await Utterance.create(scripted.server, CALL)
        return [len(batch) async for batch in utterance.batches(MOST_TOGETHER)]

    assert asyncio.run(scenario()) == [1, 1, 1, 1]


def test_arrivals_end_when_they_are_closed_and_empty() -> None:
    chunks = speech(3, 4)

    async def scenario() -> list[list[int]]:
        arrivals, taken = Arrivals(), []

        async def read() -> None:
            while batch := await arrivals.take(2):
                taken.append([chunk.index for chunk in batch])

        reader = asyncio.create_task(read())
        await asyncio.sleep(0)  # it waits
        for chunk in chunks:
            arrivals.put(chunk)
        arrivals.close()
        await asyncio.wait_for(reader, 5)
        return taken

    assert asyncio.run(scenario()) == [[0, 1], [2]]
