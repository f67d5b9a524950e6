"""A front end that owns no engine learns of the death of one, and tells everybody who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.engine.core_client import DPLBAsyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.engine.utils import bind_engine_zmq_listeners
from vllm.v1.executor import Executor

from tests.helpers.scripted_replicas import replica_config, start_replicas
from tests.unit.test_output import add
from tests.unit.test_replicas import request, serve
from voxnative.engine.connection_watch import watch_connections
from voxnative.engine.output import SpeechOutputProcessor

N_ENGINES = 2
SOON_S = 1.0


@dataclass
class FrontEnd:
    """Its client, as vLLM's supervisor has it made, and two engines that are not its children."""

    client: DPLBAsyncMPClient
    processor: SpeechOutputProcessor
    engines: list[Any]

    @classmethod
    def start(cls, config: Any, folder: Path) -> FrontEnd:
        listeners = bind_engine_zmq_listeners(config)
        addresses: dict[str, Any] = {
            "input_address": listeners.inputs[0].address,
            "output_address": listeners.outputs[0].address,
        }
        engines = start_replicas(serve, N_ENGINES, addresses)
        addresses |= {
            "input_listener": listeners.inputs[0].socket,
            "output_listener": listeners.outputs[0].socket,
            "stats_update_address": f"ipc://{folder}/stats",
        }
        client = DPLBAsyncMPClient(config, Executor.get_class(config), False, addresses)
        processor = SpeechOutputProcessor.from_stock(OutputProcessor(None, log_stats=False))
        watch_connections(client, processor)
        return cls(client, processor, engines)

    async def has_told(self, queues: list[RequestOutputCollector]) -> None:
        """Each open request ends once, and nothing is sent any more."""
        async with asyncio.timeout(SOON_S):
            for queue in queues:
                with pytest.raises(EngineDeadError):
                    await queue.get()
            with pytest.raises(EngineDeadError):
                await self.client.get_output_async()
        await asyncio.sleep(0.1)
        assert [queue.get_nowait() for queue in queues] == [None] * len(queues)
        assert not self.processor.request_states
        with pytest.raises(EngineDeadError):
            await self.client.add_request_async(request("late", None))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return replica_config(tmp_path_factory.mktemp("front_end"), N_ENGINES)


def run(
    config: Any, folder: Path, scenario: Callable[[FrontEnd], Coroutine[Any, Any, None]]
) -> None:
    async def whole() -> None:
        front_end = FrontEnd.start(config, folder)
        try:
            async with asyncio.timeout(30):
                await scenario(front_end)
        finally:
            front_end.client.shutdown()
            for engine in front_end.engines:
                engine.kill()
                engine.join()

    asyncio.run(whole())


def test_of_two_engines_one_is_killed(config: Any, tmp_path: Path) -> None:
    async def scenario(front_end: FrontEnd) -> None:
        client = front_end.client
        assert await client.call_utility_all_async("answer late") == [0, 1]
        assert not client.resources.engine_dead
        queues = [add(front_end.processor, name) for name in "abc"]
        call = asyncio.create_task(client.call_utility_all_async("answer late"))
        await asyncio.sleep(0.1)
        front_end.engines[1].kill()
        await front_end.has_told(queues)
        with pytest.raises(EngineDeadError):
            await call
        assert front_end.engines[0].is_alive()

    run(config, tmp_path, scenario)


def test_the_client_is_closed_under_open_requests(config: Any, tmp_path: Path) -> None:
    """As when the supervisor ends the front end."""

    async def scenario(front_end: FrontEnd) -> None:
        queues = [add(front_end.processor, name) for name in "ab"]
        front_end.client.shutdown()
        await front_end.has_told(queues)

    run(config, tmp_path, scenario)


def test_engines_say_nothing_of_requests_that_have_ended(config: Any, tmp_path: Path) -> None:
    async def scenario(front_end: FrontEnd) -> None:
        queue = add(front_end.processor, "a")
        front_end.processor.abort_requests(["a"], internal=True)
        assert (await queue.get()).finished
        front_end.engines[0].kill()
        await front_end.has_told([])
        assert queue.get_nowait() is None

    run(config, tmp_path, scenario)
