"""A shutdown of vLLM's engine tells everybody who waits for it; vLLM itself tells nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.executor import Executor

from tests.helpers.runtime import free_port
from tests.helpers.scripted_replicas import start_replicas
from tests.unit.test_output import add
from tests.unit.test_replicas import N_REPLICAS, config, serve
from voxnative.engine.async_engine import adopt_engine

__all__ = ["config"]
SOON_S = 3.0


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_shutdown_ends_what_is_open(config: Any, tmp_path: Path, in_thread: bool) -> None:
    """In the event loop, and in a thread, as vLLM's server does it."""
    # Not ipc: connections of this machine are watched.
    names = ("input_address", "output_address")
    addresses = {name: f"tcp://127.0.0.1:{free_port()}" for name in names}
    replicas = start_replicas(serve, N_REPLICAS, addresses)
    addresses["stats_update_address"] = f"ipc://{tmp_path}/stats"

    async def scenario() -> None:
        engine = AsyncLLM(
            config, Executor.get_class(config), log_stats=False, client_addresses=addresses
        )
        adopt_engine(engine)
        processor: Any = engine.output_processor
        queue = add(processor, "a")
        call = asyncio.create_task(engine.engine_core.call_utility_async("answer late"))
        await asyncio.sleep(0.1)
        if in_thread:
            await asyncio.to_thread(engine.shutdown)
        else:
            engine.shutdown()
        async with asyncio.timeout(SOON_S):
            for waiting in (queue.get(), call):
                with pytest.raises(EngineDeadError):
                    await waiting
        assert not processor.request_states

    try:
        asyncio.run(scenario())
    finally:
        for replica in replicas:
            replica.kill()
            replica.join()
