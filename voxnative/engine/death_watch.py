"""Ends open requests as soon as one of several replicas has died."""

from __future__ import annotations

import asyncio
import multiprocessing.connection
import threading
import weakref

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError


def watch_replicas(engine: AsyncLLM) -> None:
    """Watch the processes of a data-parallel engine; call it inside the engine's event loop.

    vLLM's client gives an engine up as a whole when one replica's process ends. It first ends the
    others, for which it gives them seconds, and only then fails the requests; those of the dead
    replica would be silent so long. Front ends that share replicas own no process and watch none.

    Source: vLLM 0.32, ``vllm/v1/engine/core_client.py:MPClient.start_engine_core_monitor``.
    """
    manager = engine.engine_core.resources.engine_manager
    if manager is None or engine.vllm_config.parallel_config.data_parallel_size == 1:
        return
    arguments = (manager.sentinels(), asyncio.get_running_loop(), weakref.ref(engine))
    threading.Thread(target=_wait, args=arguments, daemon=True, name="voxnative-replicas").start()


def _wait(
    sentinels: list[int], loop: asyncio.AbstractEventLoop, alive: weakref.ref[AsyncLLM]
) -> None:
    multiprocessing.connection.wait(sentinels)
    engine = alive()
    if engine is not None and not loop.is_closed():
        asyncio.run_coroutine_threadsafe(_give_up(engine), loop)


async def _give_up(engine: AsyncLLM) -> None:
    """Let the engine say that it is dead, then tell every open request."""
    handler = engine.output_handler
    if handler is not None:
        handler.cancel()
        await asyncio.wait([handler])
    engine.output_processor.propagate_error(EngineDeadError())
