"""Adapters by name: what may be loaded, who holds one, when it leaves the engine, its KV keys."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config.lora import LoRAConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from tests.adapters import write_adapter
from tests.checkpoints import write_checkpoint
from voxnative.config import VoxConfig
from voxnative.engine.lora_registry import LoadedLoRA, LoRARegistry, lora_settings
from voxnative.errors import CheckpointError, EngineError, ParameterError

BLOCK = 4


class ScriptedEngine:
    """Holds ids as the worker would; `fails` is what loading raises."""

    def __init__(self, **limits: int) -> None:
        config = LoRAConfig(**limits) if limits else None  # type: ignore[arg-type]
        self.vllm_config = SimpleNamespace(lora_config=config)
        self.resident: list[int] = []
        self.fails: Exception | None = None

    async def add_lora(self, request: LoRARequest) -> bool:
        await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails
        self.resident.append(request.lora_int_id)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        await asyncio.sleep(0)
        self.resident.remove(lora_id)
        return True


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("registry") / "checkpoint")


@pytest.fixture(scope="module")
def adapter(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registry_adapter")
    return write_adapter(folder / "anna", checkpoint, seed=1, r=4, enable_dit=True)


Scene = Callable[[LoRARegistry, ScriptedEngine], Coroutine[Any, Any, None]]


@pytest.fixture
def play(checkpoint: Path) -> Callable[[Scene], None]:
    """Run a scene with a registry that has room for two adapters of rank 8."""

    def run(scene: Scene) -> None:
        async def main() -> None:
            engine = ScriptedEngine(max_loras=1, max_cpu_loras=2, max_lora_rank=8)
            await scene(LoRARegistry(engine, VoxConfig.from_dir(checkpoint)), engine)

        asyncio.run(main())

    return run


async def settle() -> None:
    """Let everything that was set off come to its end."""
    gc.collect()
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_name_from_loading_to_unloading(play: Callable[[Scene], None], adapter: Path) -> None:
    async def scene(registry: LoRARegistry, engine: ScriptedEngine) -> None:
        await registry.load("anna", adapter)
        await registry.load("bob", adapter)
        assert registry.names() == ["anna", "bob"]
        assert engine.resident == [1, 2]
        assert registry.get("anna") is registry.get("anna")
        registry.unload("anna")
        with pytest.raises(ParameterError, match=r"field 'lora': 'anna' .* valid: bob$"):
            registry.get("anna")
        with pytest.raises(ParameterError, match="field 'lora_name': 'anna'"):
            registry.unload("anna")
        await settle()
        assert engine.resident == [2]

    play(scene)


def test_a_request_in_flight_keeps_its_adapter(
    play: Callable[[Scene], None], adapter: Path
) -> None:
    async def scene(registry: LoRARegistry, engine: ScriptedEngine) -> None:
        await registry.load("anna", adapter)
        held: list[LoadedLoRA] = [registry.get("anna")] * 2
        registry.unload("anna")
        held.pop()
        await settle()
        assert engine.resident == [1]
        # Nor does it make room: vLLM would drop the one that was used least recently.
        await registry.load("bob", adapter)
        with pytest.raises(ParameterError, match="at most 2 adapters at once"):
            await registry.load("carol", adapter)
        held.pop()
        await settle()
        assert engine.resident == [2]
        await registry.load("anna", adapter)
        assert engine.resident == [2, 3]

    play(scene)


def test_unloading_makes_room_at_once(play: Callable[[Scene], None], adapter: Path) -> None:
    async def scene(registry: LoRARegistry, engine: ScriptedEngine) -> None:
        for name in ("anna", "bob"):
            await registry.load(name, adapter)
        for _ in range(3):
            registry.unload("anna")
            await asyncio.sleep(0)
            await registry.load("anna", adapter)
            assert len(engine.resident) == 2

    play(scene)


@pytest.mark.parametrize("name", ["", "a" * 257, 7, None])
def test_names_that_are_not_valid(name: Any, play: Callable[[Scene], None], adapter: Path) -> None:
    async def scene(registry: LoRARegistry, engine: ScriptedEngine) -> None:
        with pytest.raises(ParameterError, match="field 'lora_name'"):
            await registry.load(name, adapter)
        with pytest.raises(ParameterError, match=r"field 'lora': .*no adapter is loaded"):
            registry.get(name)
        assert engine.resident == []

    play(scene)


def test_what_does_not_load_leaves_nothing(
    play: Callable[[Scene], None], adapter: Path, checkpoint: Path, tmp_path: Path
) -> None:
    wide = write_adapter(tmp_path / "wide", checkpoint, seed=1, r=16, enable_dit=True)

    async def scene(registry: LoRARegistry, engine: ScriptedEngine) -> None:
        with pytest.raises(CheckpointError, match=r"lora_config\.r: 16 .* valid: 1 to 8"):
            await registry.load("wide", wide)
        engine.fails = RuntimeError("out of memory")
        with pytest.raises(EngineError, match=r"did not load .*anna: out of memory"):
            await registry.load("anna", adapter)
        assert registry.names() == []
        engine.fails = None
        await registry.load("anna", adapter)
        with pytest.raises(ParameterError, match="a name not in use"):
            await registry.load("anna", adapter)

    play(scene)


def test_an_engine_without_lora_says_so(checkpoint: Path, adapter: Path) -> None:
    async def scene() -> None:
        registry = LoRARegistry(ScriptedEngine(), VoxConfig.from_dir(checkpoint))
        for attempt in (registry.get, registry.unload):
            with pytest.raises(ParameterError, match="started without LoRA"):
                attempt("anna")
        with pytest.raises(ParameterError, match="started without LoRA"):
            await registry.load("anna", adapter)

    asyncio.run(scene())


def test_entries_are_shared_with_vllms_server(play: Callable[[Scene], None], adapter: Path) -> None:
    """Adapters that its own flag `--lora-modules` loaded are found, its numbers are used."""
    from vllm.utils.counter import AtomicCounter

    async def scene(registry: LoRARegistry, engine: ScriptedEngine) -> None:
        models = SimpleNamespace(lora_requests={}, lora_id_counter=AtomicCounter(0))
        static = LoRARequest("static", models.lora_id_counter.inc(1), str(adapter))
        models.lora_requests["static"] = static
        registry.share(models)
        assert registry.get("static").engine_request.lora_int_id == 1
        await registry.load("anna", adapter)
        assert models.lora_requests["anna"].lora_int_id == 2
        assert models.lora_requests["anna"].lora_path == str(adapter)
        registry.unload("anna")
        assert list(models.lora_requests) == ["static"]
        before = registry.get("static")
        models.lora_requests["static"] = LoRARequest("static", 1, str(adapter))  # in place
        assert registry.get("static").engine_request != before.engine_request

    play(scene)


def block_hashes(lora: LoadedLoRA | None) -> list[bytes]:
    """vLLM's keys of the KV blocks of one and the same prompt."""
    request = Request(
        request_id="x",
        prompt_token_ids=list(range(20)),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        lora_request=None if lora is None else lora.engine_request,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )
    return list(request.block_hashes)


def test_no_two_adapters_share_a_block(play: Callable[[Scene], None], adapter: Path) -> None:
    """Also not one name and path given twice, whose files may have changed in between."""
    init_none_hash(sha256)

    async def scene(registry: LoRARegistry, engine: ScriptedEngine) -> None:
        await registry.load("anna", adapter)
        await registry.load("bob", adapter)
        keys = [
            block_hashes(None),
            *(block_hashes(registry.get(name)) for name in registry.names()),
        ]
        again = block_hashes(registry.get("anna"))
        assert again == keys[1]
        registry.unload("anna")
        await asyncio.sleep(0)
        await registry.load("anna", adapter)
        keys.append(block_hashes(registry.get("anna")))
        assert [len(blocks) for blocks in keys] == [5, 5, 5, 5]
        assert len({key for blocks in keys for key in blocks}) == 20

    play(scene)


@pytest.mark.parametrize(("ranks", "room"), [([4], 8), ([8, 33, 16], 64), ([512], 512), ([1], 1)])
def test_settings_make_room_for_all_adapters(ranks: list[int], room: int) -> None:
    assert lora_settings(ranks) == {
        "enable_lora": True,
        "max_loras": len(ranks),
        "max_lora_rank": room,
    }
