"""Two replicas behind one ``/v1/audio/speech``, and what clients see when they die one by one."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.test_engine_death import wait_until_gone
from tests.helpers.runtime import (
    ANSWER_S,
    SPEECH,
    Server,
    recording,
    send_audio_speech_request,
    send_many,
    send_voice,
    serve,
    title,
    voxnative_command,
)

pytestmark = [
    pytest.mark.tts,
    pytest.mark.full_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

N_REPLICAS = 2
MAX_QUEUE = 8
NOTICED_S = 5.0
SHORT = {"input": "hello there.", "seed": 1, "response_format": "pcm", "max_new_tokens": 6}
LONG = {
    "input": "we walked along the river into the old town and back again, slowly, in the rain.",
    "response_format": "pcm",
    "inference_timesteps": 40,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One front end, two replicas of two requests each."""
    folder = tmp_path_factory.mktemp("replicas")
    command = voxnative_command(
        folder, {"max_queue": MAX_QUEUE}, data_parallel_size=N_REPLICAS, max_num_seqs=2
    )
    with serve(command, folder) as server:
        yield server


def finished_by_replica(server: Server) -> list[float]:
    """Requests that each replica finished."""
    return [
        sum(
            server.metric("vllm:request_success_total", engine=str(index), finished_reason=reason)
            for reason in ("stop", "length")
        )
        for index in range(N_REPLICAS)
    ]


def test_a_seed_and_a_voice_sound_the_same_on_either_replica(server: Server) -> None:
    form = {"name": "Anna", "consent": "agreed by the speaker, in writing"}
    answer = send_voice(server, form, recording())
    assert answer.status == 200, answer.body
    voice = json.loads(answer.body)["id"]
    for request in (SHORT, SHORT | {"voice": voice}):
        before = finished_by_replica(server)
        bodies = {send_audio_speech_request(server, request).body for _ in range(4)}
        after = finished_by_replica(server)
        assert len(bodies) == 1
        assert len(bodies.pop()) > 10_000
        assert [b - a for a, b in zip(before, after, strict=True)] == [2, 2]


def test_all_places_are_used_and_answers_are_not_mixed(server: Server) -> None:
    requests = [SHORT | {"seed": seed, "input": f"number {seed}."} for seed in range(8)]
    alone = [send_audio_speech_request(server, request).body for request in requests]

    async def scenario() -> tuple[list[Any], float]:
        task = asyncio.create_task(send_many(server, requests))
        most = 0.0
        while not task.done():
            running = await asyncio.to_thread(server.metric, "voxnative_requests_running")
            most = max(most, running)
            await asyncio.sleep(0.02)
        return await task, most

    replies, most = asyncio.run(scenario())
    assert most == 2 * N_REPLICAS
    for reply, expected in zip(replies, alone, strict=True):
        assert reply.status == 200
        assert_alike(reply.body, expected)


@dataclass
class Stream:
    """A streamed answer on its way.

    Attributes:
        seed: of the request.
        begun: set by its first bytes.
        pcm: what has come.
        ended_s: when it ended, by ``time.perf_counter()``.
        error: what it ended with, None where it is whole.
    """

    seed: int
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    pcm: bytes = b""
    ended_s: float = 0.0
    error: httpx.HTTPError | None = None

    async def read(self, client: httpx.AsyncClient) -> None:
        try:
            async with client.stream("POST", SPEECH, json=LONG | {"seed": self.seed}) as answer:
                answer.raise_for_status()
                async for part in answer.aiter_raw():
                    self.begun.set()
                    self.pcm += part
        except httpx.HTTPError as error:
            self.error = error
        self.ended_s = time.perf_counter()


def client_of(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.address, timeout=ANSWER_S)


async def until_waiting(server: Server, n: int) -> None:
    async with asyncio.timeout(60):
        while await asyncio.to_thread(server.metric, "voxnative_requests_waiting") < n:
            await asyncio.sleep(0.05)


def assert_alike(got: bytes, expected: bytes) -> None:
    assert len(got) == len(expected)
    pair = (memoryview(body).cast("h") for body in (got, expected))
    assert max(abs(a - b) for a, b in zip(*pair, strict=True)) <= 4


def test_a_killed_replica_leaves_the_other(server: Server) -> None:
    """Its streams break, the others' go on, and so do new requests, with half the places."""
    alone = [
        send_audio_speech_request(server, LONG | {"seed": seed}).body
        for seed in range(2 * N_REPLICAS + 1)
    ]

    async def scenario() -> list[Stream]:
        streams = [Stream(seed) for seed in range(2 * N_REPLICAS + 1)]
        async with client_of(server) as client:
            *running, waiting = streams
            tasks = [asyncio.create_task(stream.read(client)) for stream in running]
            await asyncio.gather(*(stream.begun.wait() for stream in running))
            whole = asyncio.create_task(waiting.read(client))
            await until_waiting(server, 1)
            engines = server.engines()
            assert len(engines) == N_REPLICAS
            engines[1].kill()
            killed_s = time.perf_counter()
            await asyncio.gather(*tasks, whole)
            broken = [stream for stream in running if stream.error is not None]
            assert [type(stream.error) for stream in broken] == [httpx.RemoteProtocolError] * 2
            took_s = max(stream.ended_s for stream in broken) - killed_s
            print(f"its streams broke {took_s:.2f} s after the replica's death")
            assert took_s < NOTICED_S
            assert (await client.get("/health")).status_code == 200
        return streams

    streams = asyncio.run(scenario())
    assert server.log.read_text().count("A stream ended early: replica_lost") == 2
    assert streams[-1].error is None, "it waited, and the living replica took it"
    for stream in streams:
        if stream.error is None:
            assert_alike(stream.pcm, alone[stream.seed])
        else:
            assert 0 < len(stream.pcm) < len(alone[stream.seed])
    assert server.metric("voxnative_replicas", state="alive") == 1
    assert server.metric("voxnative_replicas", state="dead") == 1
    assert server.metric("vllm:num_requests_running", engine="1") == 0
    assert "Replica 1 has died (exit code -9): 2 requests end" in server.log.read_text()


def test_the_living_replica_serves(server: Server) -> None:
    """Requests, and calls that go to all replicas; the test before has killed the other."""
    before = finished_by_replica(server)
    replies = asyncio.run(send_many(server, [SHORT] * 4))
    assert [reply.status for reply in replies] == [200] * 4
    assert_alike(replies[0].body, replies[1].body)
    after = finished_by_replica(server)
    assert [b - a for a, b in zip(before, after, strict=True)] == [4, 0]
    form = {"name": "Bert", "consent": "agreed by the speaker, in writing"}
    answer = send_voice(server, form, recording())
    assert answer.status == 200, answer.body
    voice = json.loads(answer.body)["id"]
    assert send_audio_speech_request(server, SHORT | {"voice": voice}).status == 200


def test_requests_beyond_the_living_share_are_503(server: Server) -> None:
    async def scenario() -> httpx.Response:
        async with client_of(server) as client:
            streams = [Stream(seed) for seed in range(2 + MAX_QUEUE)]
            tasks = [asyncio.create_task(stream.read(client)) for stream in streams]
            await until_waiting(server, MAX_QUEUE)
            assert server.metric("voxnative_requests_running") == 2
            answer = await client.post(SPEECH, json=SHORT)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return answer

    answer = asyncio.run(scenario())
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "share_lost"
    assert int(answer.headers["retry-after"]) >= 1


def test_with_the_last_replica_all_is_503(server: Server) -> None:
    """It ends by an error, since its worker is killed. Nothing outlives the front end."""

    async def scenario() -> None:
        async with client_of(server) as client:
            streams = [Stream(seed) for seed in range(3)]
            tasks = [asyncio.create_task(stream.read(client)) for stream in streams[:2]]
            await asyncio.gather(*(stream.begun.wait() for stream in streams[:2]))
            tasks.append(asyncio.create_task(streams[2].read(client)))
            await until_waiting(server, 1)
            (worker,) = [
                child for child in engine.children(recursive=True) if "VLLM" in title(child)
            ]
            worker.kill()
            killed_s = time.perf_counter()
            await asyncio.gather(*tasks)
            took_s = max(stream.ended_s for stream in streams) - killed_s
            print(f"all requests ended {took_s:.2f} s after the last replica's worker")
            assert took_s < NOTICED_S
            *running, waiting = (stream.error for stream in streams)
            assert [type(error) for error in running] == [httpx.RemoteProtocolError] * 2
            assert isinstance(waiting, httpx.HTTPStatusError)
            assert waiting.response.status_code == 503
            for _ in range(3):
                later = await client.post(SPEECH, json=SHORT)
                assert later.status_code == 503
                assert later.json()["error"]["code"] == "engine_dead"
            assert (await client.get("/health")).status_code == 503

    (engine,) = [process for process in server.engines() if process.is_running()]
    children = psutil.Process(server.process.pid).children(recursive=True)
    asyncio.run(scenario())
    assert server.metric("voxnative_replicas", state="dead") == 2
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    wait_until_gone([child.pid for child in children])
