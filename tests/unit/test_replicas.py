"""Replicas that die one by one behind the real client: who is told, and who goes on."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    FinishReason,
    UtilityOutput,
)
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.engine.core_client import DPLBAsyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.executor import Executor
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder, UtilityResult

from tests.helpers.scripted_replicas import replica_config, start_replicas
from voxnative.engine.replicas import ReplicaClient, least_busy

N_REPLICAS = 3
SOON_S = 3.0
LONG_STEP_S = 3.5
A, B = b"a", b"b"


def serve(rank: int, addresses: dict[str, str]) -> None:
    """A replica that ends requests when it is told to, answers calls, and fails as vLLM's do."""
    context = zmq.Context()
    inputs = context.socket(zmq.DEALER)
    inputs.setsockopt(zmq.IDENTITY, rank.to_bytes(2, "little"))
    inputs.connect(addresses["input_address"])
    outputs = context.socket(zmq.PUSH)
    outputs.connect(addresses["output_address"])
    inputs.send(b"")  # ready
    requests, decoder = MsgpackDecoder(EngineCoreRequest), MsgpackDecoder()
    encoder = MsgpackEncoder()
    open_ids: list[str] = []

    def send(message: EngineCoreOutputs) -> None:
        message.engine_index = rank
        outputs.send_multipart(encoder.encode(message))

    while True:
        kind, *frames = inputs.recv_multipart()
        if EngineCoreRequestType(kind) is EngineCoreRequestType.ADD:
            open_ids.append(requests.decode(frames).request_id)
            continue
        _, call_id, method, _ = decoder.decode(frames)
        if method == "finish":
            ended = [EngineCoreOutput(i, [1], finish_reason=FinishReason.STOP) for i in open_ids]
            send(EngineCoreOutputs(outputs=ended, finished_requests=set(open_ids)))
            open_ids.clear()
        if method == "fail":  # and then it takes long to end
            outputs.send(EngineCoreProc.ENGINE_CORE_DEAD)
            time.sleep(60)
        if method == "answer late":
            time.sleep(0.5)
        if method == "step":  # a long one, in which nobody is answered
            time.sleep(LONG_STEP_S)
        send(EngineCoreOutputs(utility_output=UtilityOutput(call_id, result=UtilityResult(rank))))


@dataclass
class Replicas:
    """Three of them, their client, and what it told."""

    client: ReplicaClient
    processes: list[Any]
    failed: list[str] = field(default_factory=list)
    counts: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def start(cls, config: Any, folder: Path) -> Replicas:
        addresses = {f"{name}_address": f"ipc://{folder}/{name}" for name in ("input", "output")}
        processes = start_replicas(serve, N_REPLICAS, addresses)
        addresses["stats_update_address"] = f"ipc://{folder}/stats"
        stock = DPLBAsyncMPClient(config, Executor.get_class(config), False, addresses)
        replicas = cls(None, processes)  # type: ignore[arg-type]
        replicas.client = ReplicaClient.from_stock(stock, processes, replicas.fail)
        replicas.client.listen(lambda *counts: replicas.counts.append(counts))
        return replicas

    def fail(self, request_ids: Sequence[str], error: Exception) -> None:
        assert isinstance(error, EngineDeadError)
        self.failed += request_ids

    async def add(self, *names: str, rank: int | None = None) -> list[int]:
        """Send requests; returns the replicas that got them."""
        for name in names:
            await self.client.add_request_async(request(name, rank))
        return [int.from_bytes(self.client.reqs_in_flight[name], "little") for name in names]

    async def until_left(self, n: int) -> None:
        async with asyncio.timeout(SOON_S):
            while len(self.client.core_engines) > n:
                await asyncio.sleep(0.01)


def request(name: str, rank: int | None) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=name,
        prompt_token_ids=[1],
        mm_features=None,
        sampling_params=SamplingParams(),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=rank,
    )


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return replica_config(tmp_path_factory.mktemp("replicas"), N_REPLICAS)


def run(config: Any, folder: Path, scenario: Any) -> None:
    async def whole() -> None:
        replicas = Replicas.start(config, folder)
        try:
            async with asyncio.timeout(30):
                await scenario(replicas)
        finally:
            replicas.client.shutdown()
        for process in replicas.processes:
            process.join(SOON_S)  # vLLM kills, and does not wait for the end
        assert not any(process.is_alive() for process in replicas.processes)

    asyncio.run(whole())


def all_of(client: ReplicaClient, method: str) -> Coroutine[Any, Any, list[int]]:
    return client.call_utility_all_async(method)


def test_requests_go_where_the_fewest_are() -> None:
    assert least_busy([A, B], Counter({A: 2, B: 1}), Counter()) == B
    assert least_busy([A, B], Counter({A: 1, B: 1}), Counter({A: 9, B: 8})) == B
    assert least_busy([A, B], Counter(), Counter()) == A
    one, two = (rank.to_bytes(2, "little") for rank in (1, 2))
    busy = Counter({two: 5})
    assert least_busy([one, two], busy, Counter(), wanted_rank=2) == two
    assert least_busy([one, two], busy, Counter(), wanted_rank=0) == one, "that one is dead"


def test_the_dead_ones_requests_fail_once_and_the_others_go_on(config: Any, tmp_path: Path) -> None:
    async def scenario(replicas: Replicas) -> None:
        client = replicas.client
        assert await replicas.add(*"abcdef") == [0, 1, 2, 0, 1, 2]
        assert await replicas.add("g", rank=1) == [1]
        call = asyncio.create_task(all_of(client, "answer late"))
        await asyncio.sleep(0.1)
        replicas.processes[1].kill()
        await replicas.until_left(2)
        assert await call == [0, 2]
        assert sorted(replicas.failed) == ["b", "e", "g"]
        assert replicas.counts == [(3, 3), (2, 3)]
        assert not client.resources.engine_dead
        nothing_runs = await client.get_output_async()
        assert (nothing_runs.engine_index, nothing_runs.outputs) == (1, [])

        assert await replicas.add("h", "i", rank=1) == [0, 2]
        assert await all_of(client, "finish") == [0, 2]
        ended = [await client.get_output_async() for _ in range(2)]
        ids = sorted(output.request_id for step in ended for output in step.outputs)
        assert ids == ["a", "c", "d", "f", "h", "i"]
        assert client.reqs_in_flight == {}
        assert set(client.engine_inflight.values()) == {0}
        assert len(client.engine_inflight) == 2

    run(config, tmp_path, scenario)


def test_a_failure_that_names_nobody(config: Any, tmp_path: Path) -> None:
    """Found by who is silent, long before its process has ended."""

    async def scenario(replicas: Replicas) -> None:
        client = replicas.client
        await replicas.add(*"abc")
        failing = asyncio.create_task(
            client._call_utility_async("fail", engine=client.core_engines[2])
        )
        await replicas.until_left(2)
        assert replicas.failed == ["c"]
        with pytest.raises(EngineDeadError):
            await failing
        assert replicas.processes[2].is_alive()
        replicas.processes[2].kill()
        replicas.processes[2].join()
        assert await all_of(client, "finish") == [0, 1]
        assert replicas.counts == [(3, 3), (2, 3)], "one death is told once"

    run(config, tmp_path, scenario)


def test_a_long_step_is_no_failure(config: Any, tmp_path: Path) -> None:
    """All are silent for a while, one for good: the others lose nothing."""

    async def scenario(replicas: Replicas) -> None:
        client = replicas.client
        await replicas.add(*"abc")
        calls = [
            asyncio.create_task(client._call_utility_async(method, engine=engine))
            for method, engine in zip(("step", "step", "fail"), client.core_engines, strict=True)
        ]
        await asyncio.wait(calls[:2])
        assert [call.result() for call in calls[:2]] == [0, 1]
        await replicas.until_left(2)
        assert replicas.failed == ["c"]
        assert await all_of(client, "finish") == [0, 1]
        assert replicas.counts == [(3, 3), (2, 3)]
        with pytest.raises(EngineDeadError):
            await calls[2]

    run(config, tmp_path, scenario)


def test_with_the_last_one_the_engine_is_dead(config: Any, tmp_path: Path) -> None:
    async def scenario(replicas: Replicas) -> None:
        client = replicas.client
        await replicas.add(*"abc")
        for process in replicas.processes[:2]:
            process.kill()
        await replicas.until_left(1)
        call = asyncio.create_task(all_of(client, "answer late"))
        await asyncio.sleep(0.1)
        replicas.processes[2].kill()
        await replicas.until_left(0)
        with pytest.raises(EngineDeadError):
            await call
        assert sorted(replicas.failed) == ["a", "b", "c"]
        assert replicas.counts[-1] == (0, 3)
        for _ in replicas.processes:  # of each, that it runs nothing
            assert not (await client.get_output_async()).outputs
        with pytest.raises(EngineDeadError):
            await client.get_output_async()
        for attempt in (all_of(client, "finish"), client.add_request_async(request("d", None))):
            with pytest.raises(EngineDeadError):
                await attempt

    run(config, tmp_path, scenario)
