"""Adapters by name, in the front end: loaded, chosen, unloaded when nobody speaks with them."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from vllm.config.lora import MaxLoRARanks
from vllm.lora.request import LoRARequest
from vllm.v1.engine.exceptions import EngineDeadError

from voxnative.config import VoxConfig
from voxnative.errors import EngineError, ParameterError
from voxnative.lora_file import MAX_LORA_RANK, read_adapter

MAX_NAME_CHARS = 256


@dataclass(frozen=True, eq=False)
class LoadedLoRA:
    """An adapter in the engine; it stays there for as long as a request holds this object.

    Attributes:
        name: under which it was loaded.
        entry: vLLM's entry of the name, as `/v1/models` lists it.
        engine_request: what a request of the engine takes. Its name is no other adapter's ever,
            because vLLM keys KV blocks by the adapter's name and path: the files in one place
            may change, and one name may be given again.
    """

    name: str
    entry: LoRARequest
    engine_request: LoRARequest


class LoRARegistry:
    """The adapters of one engine.

    Args:
        engine: vLLM's ``AsyncLLM``.
        config: of the checkpoint that it runs.
    """

    def __init__(self, engine: Any, config: VoxConfig) -> None:
        self._engine = engine
        self._config = config
        self._limits = engine.vllm_config.lora_config  # None where LoRA is off
        self._entries: dict[str, LoRARequest] = {}
        self._loaded: dict[str, LoadedLoRA] = {}
        self._n_leaving = 0  # unloaded, but still spoken with
        self._removals: set[asyncio.Task] = set()
        self._serial = itertools.count(1)
        self._new_id: Callable[[], int] = itertools.count(1).__next__
        self._lock = asyncio.Lock()

    def share(self, models: Any) -> None:
        """Keep the entries where vLLM's server keeps them, and lists them from.

        Args:
            models: its ``OpenAIServingModels``.
        """
        self._entries = models.lora_requests
        self._new_id = lambda: models.lora_id_counter.inc(1)

    def names(self) -> list[str]:
        """Names of the loaded adapters, sorted."""
        return sorted(self._entries)

    def get(self, name: str, field: str = "lora") -> LoadedLoRA:
        """The adapter of this name.

        Raises:
            ParameterError: there is none; names those that there are.
        """
        entry = self._entries.get(name) if isinstance(name, str) else None
        if entry is None:
            raise ParameterError(field, name, self._valid_names())
        loaded = self._loaded.get(name)
        if loaded is None or loaded.entry is not entry:
            engine_request = LoRARequest(
                lora_name=f"{name}#{next(self._serial)}",
                lora_int_id=entry.lora_int_id,
                lora_path=entry.lora_path,
            )
            loaded = self._loaded[name] = LoadedLoRA(name, entry, engine_request)
        return loaded

    async def load(self, name: str, directory: str | Path) -> None:
        """Load an adapter into the engine's memory.

        Args:
            name: for requests; not in use yet.
            directory: in upstream's format, see ``voxnative.lora_file``.

        Raises:
            ParameterError: the name is not valid or in use, or there is no room.
            CheckpointError: the files do not fit the model, by key or tensor.
            EngineError: the engine failed.
        """
        async with self._lock:
            if self._removals:  # they make room within a step
                await asyncio.wait(self._removals)
            self._check_room(name)
            limit = self._limits.max_lora_rank
            directory = Path(directory).expanduser().absolute()
            await asyncio.to_thread(read_adapter, directory, self._config, limit)
            entry = LoRARequest(name, self._new_id(), str(directory))
            try:
                await self._engine.add_lora(entry)
            except Exception as error:  # whatever the worker raised comes as a bare Exception
                raise EngineError(f"the engine did not load {directory}: {error}") from error
            self._entries[name] = entry

    def unload(self, name: str) -> None:
        """Forget a name at once; the memory is freed when the last of its requests has ended.

        Raises:
            ParameterError: no adapter of this name.
        """
        loaded = self.get(name, "lora_name")
        del self._entries[name], self._loaded[name]
        self._n_leaving += 1
        loop = asyncio.get_running_loop()
        # Requests hold the object from their check to their last sample, also while they wait.
        weakref.finalize(loaded, self._release, loop, loaded.entry.lora_int_id).atexit = False

    def _release(self, loop: asyncio.AbstractEventLoop, lora_id: int) -> None:
        if not loop.is_closed():  # otherwise the engine is gone as well
            loop.call_soon_threadsafe(self._start_removal, lora_id)

    def _start_removal(self, lora_id: int) -> None:
        removal = asyncio.create_task(self._remove(lora_id))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _remove(self, lora_id: int) -> None:
        try:
            await self._engine.remove_lora(lora_id)
        except EngineDeadError:
            return  # and its memory with it
        self._n_leaving -= 1

    def _check_room(self, name: str) -> None:
        if self._limits is None:
            raise ParameterError(
                "lora", name, "unset: the engine was started without LoRA (enable_lora)"
            )
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
            raise ParameterError("lora_name", name, f"a name of 1 to {MAX_NAME_CHARS} characters")
        if name in self._entries:
            raise ParameterError("lora_name", name, "a name not in use: unload that adapter first")
        # vLLM would drop the adapter that was used least recently, maybe in the middle of a word.
        n_max = self._limits.max_cpu_loras
        if len(self._entries) + self._n_leaving >= n_max:
            raise ParameterError(
                "lora_name", name, f"at most {n_max} adapters at once (max_cpu_loras)"
            )

    def _valid_names(self) -> str:
        if self._limits is None:
            return "unset: the engine was started without LoRA (enable_lora)"
        return ", ".join(self.names()) or "unset: no adapter is loaded"


def lora_settings(ranks: list[int]) -> dict[str, Any]:
    """Engine settings with room for adapters of these ranks, all in one batch."""
    assert 0 < max(ranks) <= MAX_LORA_RANK, ranks
    room = min(rank for rank in get_args(MaxLoRARanks) if rank >= max(ranks))
    return {"enable_lora": True, "max_loras": len(ranks), "max_lora_rank": room}
