"""VoxNative: the blocking API, for scripts; it runs AsyncVoxNative on a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from voxnative.async_api import AsyncVoxNative
from voxnative.errors import EngineError
from voxnative.result import SpeechChunk, SpeechResult

T = TypeVar("T")


class VoxNative:
    """VoxCPM2 on vLLM, ready when the constructor returns.

    Use it as a context manager, or call :meth:`close`. Methods may be called from
    several threads; the requests then share batches.

    Args:
        model: checkpoint directory or Hugging Face id; the shipped checkpoint when None.
        settings: as :class:`AsyncVoxNative` takes them.

    Raises:
        CheckpointError: ``model`` is no checkpoint that can be read.
        EngineError: the engine did not come up.
    """

    def __init__(self, model: str | Path | None = None, **settings: Any) -> None:
        self._speech = AsyncVoxNative(model, **settings)
        self.config = self._speech.config
        self.sample_rate_hz = self._speech.sample_rate_hz
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="voxnative", daemon=True
        )
        self._thread.start()
        try:
            self._wait(self._speech.start())
        except BaseException:
            self._stop_loop()
            raise

    def __enter__(self) -> VoxNative:
        if self._closing:
            raise EngineError("the engine is closed: make a new VoxNative")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the engine and the thread; calling it again does nothing."""
        if self._closing:
            return
        self._closing = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._stop_loop()

    async def _end(self) -> None:
        """Stop the engine, then end every call that still waits for it."""
        await self._speech.close()
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def load_lora(self, name: str, directory: str | Path) -> None:
        """Load a LoRA adapter; see ``AsyncVoxNative.load_lora``."""
        self._wait(self._speech.load_lora(name, directory))

    def unload_lora(self, name: str) -> None:
        """Unload a LoRA adapter; see ``AsyncVoxNative.unload_lora``."""
        self._wait(self._speech.unload_lora(name))

    def synthesize(self, text: str, **arguments: Any) -> SpeechResult:
        """Speak ``text`` to its end.

        Args:
            text: what to speak.
            arguments: ``lora``, ``reference``, ``prompt`` and ``prompt_text``, ``description``,
                ``seed``, ``cfg``, ``timesteps``, ``temperature``, ``max_seconds``,
                ``max_steps``, ``min_steps``; see ``RequestBuilder.build``.

        Raises:
            InvalidRequestError: before the engine sees the request.
            EngineError: the engine failed.
        """
        return self._wait(self._speech.synthesize(text, **arguments))

    def synthesize_batch(
        self, items: Sequence[str | Mapping[str, Any]], **defaults: Any
    ) -> list[SpeechResult]:
        """Speak many texts at once; see ``AsyncVoxNative.synthesize_batch``."""
        return self._wait(self._speech.synthesize_batch(items, **defaults))

    def stream(self, text: str, **arguments: Any) -> Iterator[SpeechChunk]:
        """Speak ``text``; yields new samples as they exist.

        Arguments are checked by this call, before the first chunk is asked for. Closing
        the iterator early aborts the request.
        """
        run = self._speech.run(self._wait(self._speech.prepare(text, **arguments)).streamed())
        return self._read(run.chunks())

    def synthesize_long(self, text: str, **arguments: Any) -> SpeechResult:
        """Speak a text of any length to its end; see ``AsyncVoxNative.synthesize_long``."""
        return self._wait(self._speech.synthesize_long(text, **arguments))

    def stream_long(self, text: str, **arguments: Any) -> Iterator[SpeechChunk]:
        """Speak a text of any length piece by piece; see ``AsyncVoxNative.stream_long``.

        Arguments are checked by this call, before the first chunk is asked for.
        """
        request = self._wait(self._speech.prepare_long(text, **{"live": True, **arguments}))
        return self._read(self._speech.run_long(request).chunks())

    def _read(self, chunks: Any) -> Iterator[SpeechChunk]:
        try:
            while (chunk := self._wait(anext(chunks, None))) is not None:
                yield chunk
        finally:
            self._abort(chunks)

    def _abort(self, chunks: Any) -> None:
        """Close a request's chunks, which aborts it if it still runs."""
        if self._closing:
            return
        closing = asyncio.run_coroutine_threadsafe(chunks.aclose(), self._loop)
        # The garbage collector may drop a stream on the loop's own thread: don't wait there.
        if threading.current_thread() is not self._thread:
            closing.result()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        async def run() -> T:
            return await coroutine

        if self._closing:
            coroutine.close()
            raise EngineError("the engine is closed: make a new VoxNative")
        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise EngineError("the engine was closed while the request ran") from error
        except BaseException:
            future.cancel()  # an interrupt of this thread aborts the request
            raise

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
