"""Two servers behind ``deploy/haproxy.cfg``: what clients see when the engine of one dies."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.helpers.runtime import (
    ANSWER_S,
    SPEECH,
    Server,
    free_port,
    send_audio_speech_request,
    serve,
    voxnative_command,
)

pytestmark = [
    pytest.mark.tts,
    pytest.mark.full_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

NOTICED_S = 5.0
SHORT = {"input": "hello there.", "seed": 1, "response_format": "pcm", "max_new_tokens": 4}
LONG = {
    "input": "we walked along the river into the old town and back again, slowly.",
    "response_format": "pcm",
    "max_new_tokens": 40,
}


@dataclass(frozen=True)
class Balanced:
    """The servers, and the address in front of them."""

    servers: list[Server]
    front: Server


@pytest.fixture(scope="module")
def balanced(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balanced]:
    program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    assert program, "haproxy was not found; on Debian: apt-get install haproxy"
    folder = tmp_path_factory.mktemp("balanced")
    with ExitStack() as stack:
        servers = []
        for name in ("gpu0", "gpu1"):
            (folder / name).mkdir()
            section = {"voices_dir": str(folder / "voices")}
            command = voxnative_command(folder / name, section, max_num_seqs=4)
            servers.append(stack.enter_context(serve(command, folder / name)))
        port, config = free_port(), (repo / "deploy" / "haproxy.cfg").read_text()
        for given, address in [
            ("127.0.0.1:8001", servers[0].address.removeprefix("http://")),
            ("127.0.0.1:8002", servers[1].address.removeprefix("http://")),
            ("bind :8000", f"bind 127.0.0.1:{port}"),
        ]:
            config, n_changed = re.subn(re.escape(given) + "$", address, config, flags=re.MULTILINE)
            assert n_changed == 1, given
        (folder / "haproxy.cfg").write_text(config)
        log = folder / "haproxy.log"
        process = subprocess.Popen(
            [program, "-db", "-f", folder / "haproxy.cfg"],
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        front = Server(f"http://127.0.0.1:{port}", process, log)
        deadline = time.monotonic() + NOTICED_S
        while not healthy(front):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield Balanced(servers, front)


def healthy(server: Server) -> bool:
    try:
        return httpx.get(f"{server.address}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_requests_are_shared_and_sound_the_same(balanced: Balanced) -> None:
    alone = [send_audio_speech_request(server, SHORT) for server in balanced.servers]
    through = [send_audio_speech_request(balanced.front, SHORT) for _ in range(4)]
    assert [reply.status for reply in alone + through] == [200] * 6
    assert len({reply.body for reply in alone + through}) == 1
    for server in balanced.servers:
        assert server.metric("voxnative_requests_total", outcome="finished") >= 2


def test_a_dead_engine_ends_its_own_requests_alone(balanced: Balanced) -> None:
    """Its streams break within 5 s; the other's finish, and whoever comes now is answered."""
    whole = send_audio_speech_request(balanced.servers[0], LONG | {"seed": 0}).body
    dying = balanced.servers[1]

    async def read(client: httpx.AsyncClient, started: asyncio.Event) -> bytes:
        parts = []
        async with client.stream("POST", SPEECH, json=LONG | {"seed": 0}) as answer:
            answer.raise_for_status()
            async for part in answer.aiter_raw():
                started.set()
                parts.append(part)
        return b"".join(parts)

    async def scenario() -> tuple[list[bytes | BaseException], float, list[int]]:
        async with httpx.AsyncClient(base_url=balanced.front.address, timeout=ANSWER_S) as client:
            started = [asyncio.Event() for _ in range(4)]
            tasks = [asyncio.create_task(read(client, event)) for event in started]
            await asyncio.gather(*(event.wait() for event in started))
            assert dying.metric("voxnative_requests_running") == 2
            killed = time.perf_counter()
            dying.engine().kill()
            broken_s: list[float] = []

            def note(task: asyncio.Task[bytes]) -> None:
                if task.exception() is not None:
                    broken_s.append(time.perf_counter() - killed)

            for task in tasks:
                task.add_done_callback(note)
            statuses = []
            while time.perf_counter() < killed + NOTICED_S:
                statuses.append((await client.post(SPEECH, json=SHORT)).status_code)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert len(broken_s) == 2
            return results, max(broken_s), statuses

    results, took_s, statuses = asyncio.run(scenario())
    broken = [result for result in results if not isinstance(result, bytes)]
    finished = [result for result in results if isinstance(result, bytes)]
    assert [type(result) for result in broken] == [httpx.RemoteProtocolError] * 2
    assert [len(result) for result in finished] == [len(whole)] * 2
    assert took_s < NOTICED_S
    assert len(statuses) > 2
    assert set(statuses) == {200}
    assert healthy(balanced.front)
    print(f"streams broke {took_s:.2f} s after the death; {len(statuses)} new requests answered")


def test_without_any_engine_it_is_a_503(balanced: Balanced) -> None:
    balanced.servers[0].engine().kill()
    killed = time.monotonic()
    while healthy(balanced.front):
        assert time.monotonic() < killed + NOTICED_S
        time.sleep(0.1)
    assert httpx.get(f"{balanced.front.address}/health").status_code == 503
    assert send_audio_speech_request(balanced.front, SHORT).status == 503
