"""AsyncVoxNative: text to speech inside an event loop, many requests at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from voxnative.checkpoint import resolve_checkpoint
from voxnative.config import VoxConfig
from voxnative.errors import EngineError, InvalidRequestError, ParameterError
from voxnative.frozen_heap import freeze_heap, thaw_heap
from voxnative.long_request import LongRequest, plan_long
from voxnative.long_speech import LongRun
from voxnative.result import SpeechChunk, SpeechResult
from voxnative.speech_request import RequestBuilder, SpeechRequest, is_quick
from voxnative.speech_run import SpeechRun
from voxnative.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from voxnative.engine.lora_registry import LoadedLoRA, LoRARegistry

T = TypeVar("T")
_NOT_RUNNING = "the engine is not running: use 'async with' or call start()"
SHIPPED_CHECKPOINT = Path(__file__).parent / "checkpoints" / "tiny"


class AsyncVoxNative:
    """VoxCPM2 on vLLM's asynchronous engine.

    Use it as an asynchronous context manager, or call :meth:`start` and :meth:`close`.

    Args:
        model: checkpoint directory or Hugging Face id; the shipped checkpoint when None.
        dtype: "float32", "bfloat16" or "float16"; on a CPU float32 when None, elsewhere
            the checkpoint's.
        max_num_seqs: requests in one batch.
        max_model_len: positions a request; the checkpoint's ``max_length`` when None.
        kv_cache_memory_bytes: KV memory of each device; on a CPU sized for a full batch when
            None.
        loras: directories of LoRA adapters by name, loaded at the start; requests choose one
            with ``lora=``. Room for more, or for others later: vLLM's arguments ``enable_lora``,
            ``max_loras`` (in one batch), ``max_cpu_loras`` (loaded) and ``max_lora_rank``.
        engine_args: further arguments of vLLM's ``AsyncEngineArgs``, such as
            ``tensor_parallel_size`` (each LM layer over several devices) and
            ``data_parallel_size`` (whole replicas; ``max_num_seqs`` is then of each, and when
            one dies, its requests end with ``ReplicaLostError`` and the others go on).

    Raises:
        CheckpointError: ``model`` is no checkpoint that can be read.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        dtype: str | None = None,
        max_num_seqs: int = 8,
        max_model_len: int | None = None,
        kv_cache_memory_bytes: int | None = None,
        loras: Mapping[str, str | Path] | None = None,
        **engine_args: Any,
    ) -> None:
        self.directory = resolve_checkpoint(SHIPPED_CHECKPOINT if model is None else model)
        self.config = VoxConfig.from_dir(self.directory)
        self.sample_rate_hz = self.config.vae.out_sample_rate_hz
        self._tokenizer = TextTokenizer.from_dir(self.directory)
        self._settings = {
            "dtype": dtype,
            "max_num_seqs": max_num_seqs,
            "max_model_len": max_model_len,
            "kv_cache_memory_bytes": kv_cache_memory_bytes,
            **engine_args,
        }
        self._first_loras = dict(loras or {})
        self._loras: LoRARegistry | None = None
        self._engine: Any = None
        self._owns_engine = True
        self._requests: RequestBuilder | None = None

    @classmethod
    def from_engine(cls, model: str | Path, engine: Any) -> AsyncVoxNative:
        """Speak through an engine that runs already, as vLLM's server makes it.

        Call it inside the engine's event loop and before its first request. The engine
        stays its owner's: :meth:`close` only lets go of it.

        Args:
            model: the checkpoint that the engine was started with.
            engine: vLLM's ``AsyncLLM``.
        """
        speech = cls(model)
        speech._attach(engine)
        speech._owns_engine = False
        return speech

    async def __aenter__(self) -> AsyncVoxNative:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the engine (its own process); returns when it is ready.

        Raises:
            CheckpointError: the weight files, or those of an adapter, do not fit.
            EngineError: the engine did not come up; the cause is chained.
        """
        from voxnative.checkpoint_shapes import verify_checkpoint
        from voxnative.engine.lora_registry import lora_settings
        from voxnative.engine.start import engine_args, start_engine

        if self._engine is not None:
            raise EngineError("the engine is running already")
        await asyncio.to_thread(verify_checkpoint, self.directory, self.config)
        settings = self._settings
        if self._first_loras:
            ranks = await asyncio.to_thread(self._ranks_of_first_loras)
            settings = lora_settings(ranks) | settings
        try:
            args = engine_args(self.directory, self.config, **settings)
            # No name for the engine here: this frame may outlive it, and vLLM's engine, which
            # shuts itself down when it is dropped, cannot do so when the interpreter ends.
            self._attach(await asyncio.to_thread(start_engine, args))
            freeze_heap()
        except (RuntimeError, ValueError, TypeError) as error:  # vLLM's own, of every kind
            raise EngineError(f"the engine did not start: {error}") from error
        try:
            for name, directory in self._first_loras.items():
                await self.load_lora(name, directory)
        except BaseException:
            await self.close()
            raise

    def _ranks_of_first_loras(self) -> list[int]:
        """Ranks of the adapters to load at the start, all checked before an engine starts."""
        from voxnative.lora_file import MAX_LORA_RANK, read_adapter

        max_rank = self._settings.get("max_lora_rank", MAX_LORA_RANK)
        directories = self._first_loras.values()
        return [read_adapter(d, self.config, max_rank).rank for d in directories]

    def _attach(self, engine: Any) -> None:
        from voxnative.engine.async_engine import adopt_engine
        from voxnative.engine.lora_registry import LoRARegistry

        adopt_engine(engine)
        self._engine = engine
        self._loras = LoRARegistry(engine, self.config)
        context_len = engine.model_config.max_model_len
        self._requests = RequestBuilder(self.config, self._tokenizer, context_len)
        self._requests.n_tokens("a")  # the first text imports the checkpoint's front end

    def watch_replicas(self, tell: Callable[[int, int], None]) -> None:
        """Call ``tell(n_alive, n_replicas)`` now and whenever a data-parallel replica has died.

        Never called where the engine's replicas are not processes of this one, or it has none.

        Raises:
            EngineError: the engine is not running.
        """
        from voxnative.engine.replicas import ReplicaClient

        if self._engine is None:
            raise EngineError(_NOT_RUNNING)
        if isinstance(self._engine.engine_core, ReplicaClient):
            self._engine.engine_core.listen(tell)

    async def close(self) -> None:
        """Stop the engine; open requests end with an error."""
        if self._engine is not None and self._owns_engine:
            self._engine.shutdown()
            thaw_heap()
        self._engine = self._loras = None

    @property
    def loras(self) -> LoRARegistry:
        """The LoRA adapters: their names, loading, unloading.

        Raises:
            EngineError: the engine is not running.
        """
        if self._loras is None:
            raise EngineError(_NOT_RUNNING)
        return self._loras

    async def load_lora(self, name: str, directory: str | Path) -> None:
        """Load an adapter of upstream's format; requests then choose it with ``lora=name``.

        Raises:
            InvalidRequestError: the name is in use, or there is no room.
            CheckpointError: the files do not fit the model, by key or tensor.
        """
        await self.loras.load(name, directory)

    async def unload_lora(self, name: str) -> None:
        """Unload an adapter; requests that have been validated keep it to their end.

        Raises:
            InvalidRequestError: no adapter of this name.
        """
        self.loras.unload(name)

    async def prepare(
        self, text: str, *, lora: str | None = None, **arguments: Any
    ) -> SpeechRequest:
        """Validate one call without running it.

        Args:
            text: what to speak.
            lora: name of a loaded adapter.
            arguments: as ``RequestBuilder.build``.
        """
        build = self._builder().build
        return await _in_time(build, text, {**arguments, "lora": self._adapter(lora)})

    def _builder(self) -> RequestBuilder:
        if self._requests is None:
            raise EngineError(_NOT_RUNNING)
        return self._requests

    def _adapter(self, name: str | None) -> LoadedLoRA | None:
        return None if name is None else self.loras.get(name)

    async def stream(self, text: str, **arguments: Any) -> AsyncGenerator[SpeechChunk, None]:
        """Speak ``text``; yields new samples as they exist.

        Closing the iterator early aborts the request.

        Raises:
            InvalidRequestError: before the engine sees the request.
            EngineError: the engine failed.
        """
        run = self.run((await self.prepare(text, **arguments)).streamed())
        async with aclosing(run.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    async def synthesize(self, text: str, **arguments: Any) -> SpeechResult:
        """Speak ``text`` to its end; arguments and errors as :meth:`stream`."""
        started = time.perf_counter()
        return await self._spoken(await self.prepare(text, **arguments), started)

    async def _spoken(self, request: SpeechRequest, started: float) -> SpeechResult:
        """One request to its end; a bad case once more, if that is asked for."""
        for number in range(request.bad_case.n_attempts):
            result = await self.run(request.attempt(number), started).result()
            result = replace(result, n_attempts=number + 1)
            if not (request.bad_case.retry and request.is_bad_case(result.n_patches)):
                return result
        return replace(result, finish_reason="bad_case")

    async def prepare_long(
        self, text: str, *, lora: str | None = None, **arguments: Any
    ) -> LongRequest:
        """Validate a text of any length without running it.

        Args:
            text: what to speak.
            lora: name of a loaded adapter, for every piece.
            arguments: as ``plan_long``.
        """
        plan = partial(plan_long, self._builder())
        return await _in_time(plan, text, {**arguments, "lora": self._adapter(lora)})

    def run_long(self, request: LongRequest, started: float | None = None) -> LongRun:
        """Make a run of a prepared text; nothing is sent before its chunks are read."""
        return LongRun(self.run, request, self.sample_rate_hz, started or time.perf_counter())

    async def stream_long(self, text: str, **arguments: Any) -> AsyncGenerator[SpeechChunk, None]:
        """Speak a text of any length, piece by piece, with flat memory.

        Arguments are those of :meth:`stream` and, of ``plan_long``, ``joint``,
        ``piece_tokens``, ``first_piece``, ``lookahead`` and ``live``. With ``live``, the
        default here, samples come as they are made; without it a piece comes when it is
        complete, after a second attempt if it ran away.

        Raises:
            InvalidRequestError: before the engine sees anything.
            PieceError: a piece failed; a call with its index as ``first_piece`` goes on.
        """
        run = self.run_long(await self.prepare_long(text, **{"live": True, **arguments}))
        async with aclosing(run.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    async def synthesize_long(self, text: str, **arguments: Any) -> SpeechResult:
        """Speak a text of any length to its end; each piece is checked.

        Arguments and errors as :meth:`stream_long`; the result's ``pieces`` say how each went.
        """
        started = time.perf_counter()
        return await self.run_long(await self.prepare_long(text, **arguments), started).result()

    async def synthesize_batch(
        self, items: Sequence[str | Mapping[str, Any]], **defaults: Any
    ) -> list[SpeechResult]:
        """Speak many texts at once; results come in the order of the items.

        All items are validated before the first one runs.

        Args:
            items: texts, or mappings with ``text`` and arguments of :meth:`stream`.
            defaults: arguments for every item that does not set them itself.

        Raises:
            InvalidRequestError: with a note that says which item.
            EngineError: the engine failed; the other requests are aborted.
        """
        started = time.perf_counter()
        if isinstance(items, str):
            raise ParameterError("items", items, "a list of texts or of mappings with a text")
        requests = []
        for index, item in enumerate(items):
            try:
                requests.append(await self.prepare(**(defaults | _batch_arguments(item))))
            except InvalidRequestError as error:
                error.add_note(f"in item {index} of the batch")
                raise
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._spoken(r, started)) for r in requests]
        except ExceptionGroup as failures:  # the group aborts the others when one fails
            raise failures.exceptions[0] from failures
        return [task.result() for task in tasks]

    def run(self, request: SpeechRequest, started: float | None = None) -> SpeechRun:
        """Make a run of a prepared request; nothing is sent before its chunks are read."""
        if self._engine is None:
            raise EngineError(_NOT_RUNNING)
        return SpeechRun(self._engine, self.config, request, started or time.perf_counter())


async def _in_time(build: Callable[..., T], text: str, arguments: dict[str, Any]) -> T:
    """Build a request here and now, or in a thread where that takes long.

    Many requests that arrive at once get to the engine one by one this way, the first of them
    at once, rather than all together when the threads are through with the last.
    """
    if is_quick(text, arguments):
        return build(text, **arguments)
    return await asyncio.to_thread(build, text, **arguments)


def _batch_arguments(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"text": item}
    if not isinstance(item, Mapping) or "text" not in item:
        raise ParameterError("items", item, "texts, or mappings with 'text'")
    return dict(item)
