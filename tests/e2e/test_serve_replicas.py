"""Two replicas behind one ``/v1/audio/speech``, and what clients see when one of them dies."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.helpers.runtime import (
    ANSWER_S,
    SPEECH,
    Server,
    recording,
    send_audio_speech_request,
    send_many,
    send_voice,
    serve,
    voxnative_command,
)

pytestmark = [
    pytest.mark.tts,
    pytest.mark.full_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

N_REPLICAS = 2
NOTICED_S = 5.0
SHORT = {"input": "hello there.", "seed": 1, "response_format": "pcm", "max_new_tokens": 6}
LONG = {
    "input": "we walked along the river into the old town and back again, slowly. " * 4,
    "response_format": "pcm",
    "inference_timesteps": 40,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One front end, two replicas of two requests each."""
    folder = tmp_path_factory.mktemp("replicas")
    command = voxnative_command(
        folder, {"max_queue": 8}, data_parallel_size=N_REPLICAS, max_num_seqs=2
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
        assert len(reply.body) == len(expected)
        got, wanted = (memoryview(body).cast("h") for body in (reply.body, expected))
        assert max(abs(a - b) for a, b in zip(got, wanted, strict=True)) <= 4


def test_a_killed_replica(server: Server) -> None:
    """vLLM's client gives the engine up as a whole: errors within 5 s, then 503 for everything."""

    async def read(client: httpx.AsyncClient, seed: int, started: asyncio.Event) -> int:
        n_bytes = 0
        async with client.stream("POST", SPEECH, json=LONG | {"seed": seed}) as answer:
            answer.raise_for_status()
            async for part in answer.aiter_raw():
                started.set()
                n_bytes += len(part)
        return n_bytes

    async def scenario() -> float:
        async with httpx.AsyncClient(base_url=server.address, timeout=ANSWER_S) as client:
            started = [asyncio.Event() for _ in range(2 * N_REPLICAS)]
            tasks = [
                asyncio.create_task(read(client, seed, event)) for seed, event in enumerate(started)
            ]
            await asyncio.gather(*(event.wait() for event in started))
            tasks.append(asyncio.create_task(read(client, 99, asyncio.Event())))
            while server.metric("voxnative_requests_waiting") < 1:
                await asyncio.sleep(0.05)
            engines = server.engines()
            assert len(engines) == N_REPLICAS
            killed = time.perf_counter()
            engines[1].kill()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            took_s = time.perf_counter() - killed
            assert all(isinstance(r, httpx.RemoteProtocolError) for r in results[:-1]), results
            assert isinstance(results[-1], httpx.HTTPStatusError)
            assert results[-1].response.status_code == 503
            later = await client.post(SPEECH, json=SHORT)
            assert later.status_code == 503
            assert later.json()["error"]["code"] == "engine_dead"
            assert (await client.get("/health")).status_code == 503
            return took_s

    took_s = asyncio.run(scenario())
    print(f"open requests failed {took_s:.2f} s after the replica's death")
    assert took_s < NOTICED_S
