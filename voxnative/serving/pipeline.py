"""From a call to the bytes of an answer: engine -> tempo -> rate -> encoder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from voxnative.result import SpeechChunk
from voxnative.serving.adapters.base import SpeechCall
from voxnative.serving.formats.base import AudioFormat, StreamEncoder
from voxnative.serving.sample_chain import SampleChain
from voxnative.serving.utterance import Utterance

if TYPE_CHECKING:
    from voxnative.serving.server import SpeechServer


# Chunks in one piece: a second of audio, 120 kB of PCM. Of larger ones a slow client would seem to
# read nothing.
MOST_TOGETHER = 8


@dataclass(frozen=True)
class Answer:
    """How the samples of one request are sent.

    Attributes:
        format: container and codec.
        model_hz: rate of the model's samples.
        rate_hz: rate of the answer's.
        speed: tempo, 1 leaves it.
        streams: bytes are sent as they exist; otherwise at the end, with true sizes.
    """

    format: AudioFormat
    model_hz: int
    rate_hz: int
    speed: float
    streams: bool


async def pcm_stream(server: SpeechServer, call: SpeechCall) -> AsyncGenerator[SpeechChunk, None]:
    """The model's own samples of one call, as they exist; errors as `Utterance`."""
    utterance = await Utterance.create(server, call)
    async with aclosing(utterance.chunks()) as chunks:
        async for chunk in chunks:
            yield chunk


async def speak(utterance: Utterance, answer: Answer) -> AsyncGenerator[bytes, None]:
    """The bytes of one answer, none of the pieces empty.

    The first piece comes with the first audio, so that everything that can go wrong before it
    still decides the status of the answer. Chunks that wait, because the event loop or the client
    is behind, are encoded and sent as one piece. Errors are those of `Utterance.chunks`.
    """
    chain = SampleChain(answer.model_hz, answer.rate_hz, answer.speed)
    run = _at_once if answer.format.is_cheap and chain.is_empty else asyncio.to_thread
    encoder = answer.format.encoder(answer.rate_hz, not answer.streams)
    head = encoder.start()
    async with aclosing(utterance.batches(MOST_TOGETHER)) as batches:
        async for chunks in batches:
            piece = head + await run(_encoded, encoder, chain, chunks)
            head = b""
            if piece:
                yield piece
    if tail := await run(_rest, encoder, chain):
        yield tail


def _encoded(encoder: StreamEncoder, chain: SampleChain, chunks: list[SpeechChunk]) -> bytes:
    parts = [chunk.samples for chunk in chunks]
    return encoder.feed(chain.feed(parts[0] if len(parts) == 1 else np.concatenate(parts)))


def _rest(encoder: StreamEncoder, chain: SampleChain) -> bytes:
    return encoder.feed(chain.finish()) + encoder.finish()


async def _at_once(work: Callable[..., bytes], *arguments: Any) -> bytes:
    return work(*arguments)


async def whole(pieces: AsyncGenerator[bytes, None]) -> bytes:
    """All pieces in one."""
    async with aclosing(pieces):
        return b"".join([piece async for piece in pieces])
