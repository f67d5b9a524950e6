"""A dead engine, on the server that all tests share, when they are done with it.

In the long tail: plain ``vllm serve`` with the routes as a plugin, its keys, and limits so small
that they are reached (the limits themselves: tests/unit/serving/test_limits.py, test_utterance.py).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.runtime import ANSWER_S, SPEECH, Server, serve

pytestmark = [
    pytest.mark.tts,
    pytest.mark.advanced_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

KEY = "a-key-of-the-tests"
SETTINGS = {"max_concurrency": 2, "max_queue": 1, "request_timeout_s": 6}
LONG = {
    "input": "we walked along the river into the old town and back again, slowly. " * 4,
    "response_format": "pcm",
    "seed": 1,
    "inference_timesteps": 40,
}
NOTICED_S = 5.0


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, tiny_dir: Path) -> Iterator[Server]:
    """vLLM's own command; the plugin is named in its environment."""
    folder = tmp_path_factory.mktemp("plain")
    settings = {**SETTINGS, "voices_dir": str(folder / "voices")}
    # The command `vllm` of the CPU wheel does not start; its module does.
    module = "vllm.entrypoints.launchers.api_server.entry"
    command = [sys.executable, "-m", module, "--model", str(tiny_dir)]
    command += ["--dtype", "float32", "--kv-cache-memory-bytes", str(64 << 20)]
    command += ["--api-key", KEY, "--enable-request-id-headers"]
    command += ["--additional-config", json.dumps({"voxnative": settings})]
    environment = {"VLLM_PLUGINS": "voxnative", "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"}
    with serve(command, folder, **environment) as server:
        yield server


def client_of(server: Server) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx.AsyncClient(base_url=server.address, timeout=ANSWER_S, headers=headers)


async def read(client: httpx.AsyncClient, body: dict[str, Any], started: asyncio.Event) -> bytes:
    """The whole answer; `started` is set by its first bytes."""
    async with client.stream("POST", SPEECH, json=body) as answer:
        answer.raise_for_status()
        parts = []
        async for part in answer.aiter_raw():
            started.set()
            parts.append(part)
        return b"".join(parts)


@pytest.mark.full_model
def test_keys_and_request_ids_are_vllms(plain: Server) -> None:
    body = {"input": "hi.", "max_new_tokens": 2}
    refused = httpx.post(plain.address + SPEECH, json=body)
    assert refused.status_code == 401
    headers = {"Authorization": f"Bearer {KEY}", "X-Request-Id": "mine"}
    answer = httpx.post(plain.address + SPEECH, json=body, headers=headers, timeout=ANSWER_S)
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] == "mine"
    assert len(answer.content) > 1_000


@pytest.mark.full_model
def test_past_the_queue_is_a_429(plain: Server) -> None:
    async def scenario() -> httpx.Response:
        async with client_of(plain) as client:
            started = [asyncio.Event() for _ in range(2)]
            held = [asyncio.create_task(read(client, LONG, event)) for event in started]
            await asyncio.gather(*(event.wait() for event in started))
            held.append(asyncio.create_task(read(client, LONG, asyncio.Event())))
            while plain.metric("voxnative_requests_waiting") < 1:
                await asyncio.sleep(0.05)
            answer = await client.post(SPEECH, json=LONG)
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)
            return answer

    answer = asyncio.run(scenario())
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "queue_full"
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.full_model
def test_time_is_over(plain: Server) -> None:
    """Whole: 504. Streamed: the connection breaks. Events: one says why."""

    async def scenario() -> None:
        async with client_of(plain) as client:
            whole = await client.post(SPEECH, json={**LONG, "stream": False})
            assert whole.status_code == 504
            assert whole.json()["error"]["code"] == "timeout"
            broken, events = await asyncio.gather(
                read(client, LONG, asyncio.Event()),
                read(client, {**LONG, "stream_format": "sse"}, asyncio.Event()),
                return_exceptions=True,
            )
            assert isinstance(broken, httpx.RemoteProtocolError)
            assert isinstance(events, bytes)
            last = json.loads(events.decode().split("\n\n")[-2].removeprefix("data: "))
            assert last["type"] == "speech.audio.error"
            assert last["error"]["code"] == "timeout"

    asyncio.run(scenario())
    assert plain.metric("voxnative_requests_total", outcome="timeout") == 3


@pytest.mark.ends_shared_engine
def test_a_killed_engine(speech_server: Server) -> None:
    kill(speech_server, n_places=8)


@pytest.mark.full_model
def test_a_killed_engine_of_plain_vllm(plain: Server) -> None:
    kill(plain, n_places=2)


def kill(server: Server, n_places: int) -> None:
    """Open requests fail within 5 s, the one that waits too; later ones get 503."""

    async def scenario() -> float:
        async with client_of(server) as client:
            started = [asyncio.Event() for _ in range(n_places)]
            tasks = [asyncio.create_task(read(client, LONG, event)) for event in started]
            await asyncio.gather(*(event.wait() for event in started))
            tasks.append(asyncio.create_task(read(client, LONG, asyncio.Event())))
            while server.metric("voxnative_requests_waiting") < 1:
                await asyncio.sleep(0.05)
            killed = time.perf_counter()
            server.engine().kill()
            *spoken, waiting = await asyncio.gather(*tasks, return_exceptions=True)
            took_s = time.perf_counter() - killed
            assert [type(result) for result in spoken] == [httpx.RemoteProtocolError] * n_places
            assert isinstance(waiting, httpx.HTTPStatusError)
            assert waiting.response.status_code == 503
            later = await client.post(SPEECH, json=LONG)
            assert later.status_code == 503
            assert later.json()["error"]["code"] == "engine_dead"
            assert (await client.get("/health")).status_code == 503
            return took_s

    took_s = asyncio.run(scenario())
    print(f"open requests failed {took_s:.2f} s after the engine's death")
    assert took_s < NOTICED_S
