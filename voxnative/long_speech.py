"""A long text on its way through the engine: pieces made ahead, in order, with flat memory."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from voxnative.errors import EngineError, InvalidRequestError, PieceError, ReplicaLostError
from voxnative.long_request import LongRequest, SpokenPiece
from voxnative.pieces import Piece
from voxnative.result import FinishReason, PieceRecord, SpeechChunk, SpeechResult
from voxnative.seam import Seam
from voxnative.speech_request import SpeechRequest

ATTEMPTS = 2


class Run(Protocol):
    """One request in the engine, as `SpeechRun`."""

    finish_reason: Any

    def chunks(self) -> AsyncGenerator[SpeechChunk, None]: ...


@dataclass
class _Making:
    """A piece that is being made, or waits to be read.

    Attributes:
        ready: samples that may be handed out, in order; None at the end.
        task: makes the piece; None where its reader does.
        spoken: the piece's samples, where a later one needs them.
        record: how it went.
    """

    piece: Piece
    ready: asyncio.Queue[np.ndarray | None] = field(default_factory=asyncio.Queue)
    task: asyncio.Task[None] | None = None
    spoken: SpokenPiece | None = None
    record: PieceRecord = field(init=False)

    async def samples(self) -> AsyncGenerator[np.ndarray, None]:
        """What the task hands out, in order; raises what ended it."""
        assert self.task is not None
        while (made := await self.ready.get()) is not None:
            yield made
        await self.task


class LongRun:
    """One long text; it is read once, by chunks or as a result.

    At most `lookahead` pieces beyond the one that is read are made or wait, so that a reader
    that is slow, or stops, costs no more than their memory. A single piece has nothing beyond it
    and is made by its reader: a task more would be one more to wake for every chunk.

    Args:
        run: makes a run of a request, as ``AsyncVoxNative.run``.
        request: the validated text.
        sample_rate_hz: output rate.
        started: ``time.perf_counter()`` at the call.

    Attributes:
        records: of the pieces that have been read to their end; not of one that was cut short.
        n_patches: patches that have been handed out.
        finish_reason: "stop", or how the first piece ended that did otherwise; "length" too
            where `max_seconds` ended the whole. None while it runs.
        n_prompt_tokens: positions of all prompts so far.
        ttfa_s: seconds from the call to the first samples.
    """

    def __init__(
        self,
        run: Callable[[SpeechRequest], Run],
        request: LongRequest,
        sample_rate_hz: int,
        started: float,
    ) -> None:
        self._run = run
        self._request = request
        self._rate_hz = sample_rate_hz
        self._started = started
        self._first: SpokenPiece | None = None
        self.records: list[PieceRecord] = []
        self.n_patches = 0
        self.finish_reason: FinishReason | None = None
        self.n_prompt_tokens = len(request.opening.prompt.token_ids)
        self.ttfa_s: float | None = None

    async def chunks(self) -> AsyncGenerator[SpeechChunk, None]:
        """New samples in the order of the text; closing the iterator aborts all requests.

        Raises:
            PieceError: a piece failed; everything before it has been handed out.
        """
        request, seam = self._request, Seam(self._rate_hz)
        waiting = deque(request.pieces[request.first_piece :])
        making: deque[_Making] = deque()
        newest: _Making | None = None
        is_alone = len(waiting) == 1
        start_s, n_given, index, n_most = 0.0, 0, 0, sys.maxsize
        if request.n_max_patches is not None:
            n_most = request.n_max_patches * request.patch_samples
        try:
            while waiting or making:
                while waiting and len(making) <= request.lookahead and not is_alone:
                    newest = self._start(waiting.popleft(), newest)
                    making.append(newest)
                current = _Making(waiting.popleft()) if is_alone else making[0]
                is_last = not waiting and len(making) <= 1
                made = self._speak(current, None) if is_alone else current.samples()
                async with aclosing(made):
                    async for ready in made:
                        samples = seam.feed(ready, is_last_piece=is_last)[: n_most - n_given]
                        n_given += len(samples)
                        yield self._chunk(samples, index, current.piece)
                        index += 1
                        self.n_patches = math.ceil(n_given / request.patch_samples)
                        if n_given == n_most and current.piece.index != request.first_piece:
                            self.finish_reason = "length"
                            return
                if making:
                    making.popleft()
                self.records.append(replace(current.record, start_s=start_s))
                start_s += current.record.duration_s
                seam.join()
            self.finish_reason = self._ending()
        finally:
            tasks = [piece.task for piece in making if piece.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def result(self) -> SpeechResult:
        """Read all chunks; the whole audio is kept."""
        async with aclosing(self.chunks()) as chunks:
            parts = [chunk.samples async for chunk in chunks]
        assert self.ttfa_s is not None
        assert self.finish_reason is not None
        return SpeechResult(
            samples=np.concatenate(parts),
            sample_rate_hz=self._rate_hz,
            finish_reason=self.finish_reason,
            n_patches=self.n_patches,
            n_max_patches=self._request.n_max_patches
            or sum(piece.n_max_patches for piece in self.records),
            n_attempts=max(piece.n_attempts for piece in self.records),
            pieces=tuple(self.records),
            seed=self._request.seed,
            ttfa_s=self.ttfa_s,
            wall_s=time.perf_counter() - self._started,
        )

    def _chunk(self, samples: np.ndarray, index: int, piece: Piece) -> SpeechChunk:
        if self.ttfa_s is None:
            self.ttfa_s = time.perf_counter() - self._started
        return SpeechChunk(samples, self._rate_hz, index, piece.index)

    def _ending(self) -> FinishReason:
        others = [r.finish_reason for r in self.records if r.finish_reason != "stop"]
        return others[0] if others else "stop"

    def _start(self, piece: Piece, before: _Making | None) -> _Making:
        making = _Making(piece)
        making.task = asyncio.create_task(_hand_out(making, self._speak(making, before)))
        making.task.add_done_callback(lambda _: making.ready.put_nowait(None))
        return making

    async def _speak(
        self, making: _Making, before: _Making | None
    ) -> AsyncGenerator[np.ndarray, None]:
        """Speak one piece, twice if need be; yields what may be handed out, and notes the rest."""
        request, piece = self._request, making.piece
        spoken_before: SpokenPiece | None = None
        waits = request.makes_one_at_a_time or (request.joint == "reference" and not self._first)
        if before is not None and waits:
            assert before.task is not None
            await asyncio.shield(before.task)
            spoken_before = before.spoken
        del before  # a chain of all pieces would keep all their audio
        is_needed = piece is not request.pieces[-1]  # by pieces behind it
        failure: Exception | str = ""
        for attempt in range(ATTEMPTS):
            try:
                build = partial(request.request, piece, attempt, spoken_before, self._first)
                is_built = piece.index == request.first_piece
                call, joined = build() if is_built else await asyncio.to_thread(build)
            except InvalidRequestError as error:
                failure = error
                break
            if piece.index != request.first_piece:
                self.n_prompt_tokens += len(call.prompt.token_ids)
            run, parts, n_patches, n_samples = self._run(call), [], 0, 0
            try:
                async with aclosing(run.chunks()) as chunks:
                    async for chunk in chunks:
                        n_patches += 1
                        n_samples += len(chunk.samples)
                        if is_needed or not request.live:
                            parts.append(chunk.samples)
                        if request.live:
                            yield chunk.samples
            except EngineError as error:
                failure = error
                if request.live and n_patches:
                    break  # what was heard cannot be taken back
                if isinstance(error, ReplicaLostError):
                    break  # the piece is not to blame, and another attempt has another seed
                continue
            if not request.live:
                if run.finish_reason == "length" and n_patches != request.n_max_patches:
                    failure = f"it did not end within {n_patches} patches"
                    continue
                for samples in parts:
                    yield samples
            if is_needed:
                spoken = SpokenPiece(piece.text, np.concatenate(parts), self._rate_hz)
                if piece.index == request.first_piece:
                    self._first = spoken
                making.spoken = spoken if request.joint == "continue" else None
            making.record = PieceRecord(
                index=piece.index,
                start=piece.start,
                end=piece.end,
                finish_reason=run.finish_reason,
                n_patches=n_patches,
                n_max_patches=call.n_max_steps,
                duration_s=n_samples / self._rate_hz,
                seed=call.seed,
                n_attempts=attempt + 1,
                is_joined=joined,
            )
            return
        n_pieces = len(request.pieces)
        if n_pieces == 1 and isinstance(failure, Exception):
            raise failure
        cause = failure if isinstance(failure, Exception) else None
        raise PieceError(piece.index, n_pieces, piece.start, piece.end, str(failure)) from cause


async def _hand_out(making: _Making, made: AsyncGenerator[np.ndarray, None]) -> None:
    async with aclosing(made):
        async for samples in made:
            making.ready.put_nowait(samples)
