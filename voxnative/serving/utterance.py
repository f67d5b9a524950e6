"""One request on its way through the server: queue, engine, and the reader of its chunks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from voxnative.errors import EngineError, InvalidRequestError
from voxnative.long_request import LongRequest
from voxnative.result import SpeechChunk
from voxnative.serving.adapters.base import SpeechCall
from voxnative.serving.http_errors import RequestFailed, engine_dead, engine_failed, timed_out
from voxnative.serving.metrics import RequestClock

if TYPE_CHECKING:
    from voxnative.serving.server import SpeechServer


class Arrivals:
    """Chunks that were made and have not been read; one reader waits for them."""

    def __init__(self) -> None:
        self._chunks: deque[SpeechChunk] = deque()
        self._is_closed = False
        self._reader: asyncio.Future[None] | None = None

    def put(self, chunk: SpeechChunk) -> None:
        """Add a chunk."""
        self._chunks.append(chunk)
        self._wake()

    def close(self) -> None:
        """There will be no more."""
        self._is_closed = True
        self._wake()

    async def take(self, n_at_most: int) -> list[SpeechChunk]:
        """What has come, oldest first; waits for something. Empty at the end."""
        while not self._chunks and not self._is_closed:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return [self._chunks.popleft() for _ in range(min(n_at_most, len(self._chunks)))]

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class Utterance:
    """A validated request; its chunks are read once. A long text is spoken piece by piece.

    The engine is read as fast as it speaks, whatever the reader does: a reader that is slow or
    stuck costs the memory of its own audio, and neither a slot nor anybody else's time.

    Attributes:
        n_patches: patches that came so far.
    """

    def __init__(self, server: SpeechServer, request: LongRequest) -> None:
        self._server = server
        self._run = server.speech.run_long(request)
        self._clock = RequestClock(server.metrics)
        self.n_patches = 0

    @classmethod
    async def create(
        cls, server: SpeechServer, call: SpeechCall, *, live: bool = True
    ) -> Utterance:
        """Validate a call.

        Args:
            server: what all routes share.
            call: text and arguments.
            live: audio is sent as it is made; otherwise each piece of a long text is checked.

        Raises:
            InvalidRequestError: names the field of the body.
        """
        try:
            # One piece at a time: the request has one slot of the engine.
            request = await server.speech.prepare_long(
                call.text, live=live, lookahead=0, **call.arguments
            )
        except InvalidRequestError as error:
            raise server.adapter.in_body_terms(error) from error
        return cls(server, request.live_if_short())

    @property
    def n_prompt_tokens(self) -> int:
        """Positions of the prompts, text and recordings, so far."""
        return self._run.n_prompt_tokens

    @property
    def finish_reason(self) -> str | None:
        """Why the speech ended, as `SpeechResult`; None before that."""
        return self._run.finish_reason

    async def chunks(self) -> AsyncGenerator[SpeechChunk, None]:
        """New samples as they exist; closing the iterator aborts the request.

        Raises:
            RequestFailed: the queue is full (429), the time is over (504), the engine is dead
                (503) or failed (500). An error overtakes chunks that have not been read.
        """
        async with aclosing(self.batches(1)) as batches:
            async for (chunk,) in batches:
                yield chunk

    async def batches(self, n_at_most: int) -> AsyncGenerator[list[SpeechChunk], None]:
        """As :meth:`chunks`, but what waits comes together.

        A reader that falls behind then has the less to do for each chunk, the more wait for it.

        Args:
            n_at_most: chunks that come together.
        """
        arrived = Arrivals()
        pump = asyncio.create_task(self._pump(arrived))
        pump.add_done_callback(lambda _: arrived.close())
        try:
            while batch := await arrived.take(n_at_most):
                if pump.done():
                    pump.result()
                yield batch
            pump.result()
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    async def _pump(self, arrived: Arrivals) -> None:
        server = self._server
        limit_s = server.settings.request_timeout_s
        outcome = "failed"
        self._clock.queued()
        try:
            async with asyncio.timeout(limit_s), server.admission.slot():
                self._clock.admitted()
                await self._speak(arrived)
            outcome = "finished"
        except TimeoutError as error:
            outcome = "timeout"
            raise timed_out(limit_s) from error
        except RequestFailed:
            outcome = "refused"
            raise
        except EngineError as error:
            failure = engine_dead() if server.is_engine_dead else engine_failed(error)
            raise failure from error
        except asyncio.CancelledError:
            outcome = "aborted"
            raise
        finally:
            self._clock.ended(outcome, self.finish_reason)

    async def _speak(self, arrived: Arrivals) -> None:
        async with aclosing(self._run.chunks()) as chunks:
            async for chunk in chunks:
                self._clock.made(len(chunk.samples) / chunk.sample_rate_hz)
                self.n_patches += 1
                arrived.put(chunk)
