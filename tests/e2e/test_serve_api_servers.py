"""Two API servers in front of one engine: ``--api-server-count 2``."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any

import httpx
import psutil
import pytest

from tests.adapters import write_adapter
from tests.checkpoints import TRAINED_TINY
from tests.helpers.runtime import (
    ANSWER_S,
    SPEECH,
    VOICES,
    Server,
    recording,
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

N_SERVERS = 2
N_CONNECTIONS = 4
NOTICED_S = 5.0
END_S = 30.0
REQUEST = {"input": "hello there.", "seed": 1, "response_format": "pcm", "max_new_tokens": 6}
LONG = {
    "input": "we walked along the river into the old town and back again, slowly, in the rain.",
    "response_format": "pcm",
    "inference_timesteps": 40,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two API servers, an engine of four places, and an adapter that is there from the start."""
    folder = tmp_path_factory.mktemp("api_servers")
    adapter = write_adapter(
        folder / "loras" / "anna", TRAINED_TINY, seed=3, r=4, enable_lm=True, enable_dit=True
    )
    command = voxnative_command(
        folder,
        {"max_queue": 8, "allowed_lora_dirs": [str(folder / "loras")]},
        api_server_count=N_SERVERS,
        max_num_seqs=4,
        enable_lora=True,
        max_loras=1,
        max_lora_rank=8,
        lora_modules=[f"anna={adapter}"],
    )
    # Connections stay as long as the tests take, whatever they wait for.
    with serve(command, folder, VLLM_HTTP_TIMEOUT_KEEP_ALIVE="900") as server:
        yield server


class Connection:
    """A connection that stays open, and the process that accepted it."""

    def __init__(self, server: Server) -> None:
        host, port = server.address.removeprefix("http://").split(":")
        self._http = HTTPConnection(host, int(port), timeout=ANSWER_S)
        self._http.connect()
        self._own_port = self._http.sock.getsockname()[1]
        time.sleep(0.1)  # for whoever accepts it
        self.owner = next(p for p in api_servers(server) if self._is_accepted_by(p))

    def _is_accepted_by(self, process: psutil.Process) -> bool:
        return any(c.raddr and c.raddr.port == self._own_port for c in process.net_connections())

    def send(self, method: str, path: str, **body: Any) -> tuple[int, bytes]:
        """Status and body of the answer."""
        content = json.dumps(body) if body else None
        self._http.request(method, path, content, {"Content-Type": "application/json"})
        answer = self._http.getresponse()
        return answer.status, answer.read()

    def stream(self, **changes: Any) -> Iterator[bytes]:
        """Pieces of a long answer, as they come."""
        content = json.dumps({**LONG, **changes})
        self._http.request("POST", SPEECH, content, {"Content-Type": "application/json"})
        answer = self._http.getresponse()
        assert answer.status == 200
        while piece := answer.read1():
            yield piece

    def speak(self, **changes: Any) -> bytes:
        status, audio = self.send("POST", SPEECH, **{**REQUEST, **changes})
        assert status == 200, audio
        return audio


def api_servers(server: Server) -> list[psutil.Process]:
    """The processes that answer."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [child for child in children if "APIServer" in title(child)]


@pytest.fixture(scope="module")
def connections(server: Server) -> list[Connection]:
    return [Connection(server) for _ in range(N_CONNECTIONS)]


def test_connections_are_shared_out(server: Server, connections: list[Connection]) -> None:
    assert len(api_servers(server)) == N_SERVERS
    owners = [connection.owner.pid for connection in connections]
    assert sorted(owners.count(pid) for pid in set(owners)) == [2, 2]


def test_all_of_them_speak_alike(connections: list[Connection]) -> None:
    assert len({connection.speak() for connection in connections}) == 1


def test_a_voice_is_known_to_all(server: Server, connections: list[Connection]) -> None:
    form = {"name": "Anna", "consent": "agreed by the speaker, in writing"}
    answer = send_voice(server, form, recording())
    assert answer.status == 200, answer.body
    voice = json.loads(answer.body)["id"]
    for connection in connections:
        status, listed = connection.send("GET", VOICES)
        assert status == 200
        assert voice in listed.decode()
    (spoken,) = {connection.speak(voice=voice) for connection in connections}
    assert spoken != connections[0].speak()


def test_adapters_are_those_of_the_start(server: Server, connections: list[Connection]) -> None:
    (spoken,) = {connection.speak(lora="anna") for connection in connections}
    assert spoken != connections[0].speak()
    path = str(server.log.parent / "loras" / "anna")
    for connection in connections:
        for route, body in (
            ("load", {"lora_name": "bob", "lora_path": path}),
            ("unload", {"lora_name": "anna"}),
        ):
            status, answer = connection.send("POST", f"/v1/{route}_lora_adapter", **body)
            assert status == 400
            assert json.loads(answer)["error"]["code"] == "several_api_servers"
        assert connection.speak(lora="anna") == spoken


def test_metrics_are_sums_over_all(server: Server, connections: list[Connection]) -> None:
    before = server.metric("voxnative_requests_total", outcome="finished")
    for connection in connections:
        connection.speak()
    after = [server.metric("voxnative_requests_total", outcome="finished") for _ in range(4)]
    assert after == [before + N_CONNECTIONS] * 4  # whichever of them is asked
    assert server.metric("voxnative_requests_running") == 0


def test_many_at_once(server: Server, connections: list[Connection]) -> None:
    """More than the engine has places; each gets what it would get alone."""
    requests = [{**REQUEST, "seed": seed, "max_new_tokens": 3 + seed % 4} for seed in range(12)]
    replies = asyncio.run(send_many(server, requests))
    assert [reply.status for reply in replies] == [200] * len(requests)
    for request, reply in zip(requests, replies, strict=True):
        assert len(reply.body) == len(connections[0].speak(**request))


@dataclass
class Listener:
    """A streamed answer, read in a thread of its own.

    Attributes:
        begun: set by its first bytes.
        error: what the stream ended with, None where it is whole.
        ended_s: when it ended, by ``time.perf_counter()``.
    """

    connection: Connection
    seed: int
    begun: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    ended_s: float = 0.0

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._listen, daemon=True)
        thread.start()
        return thread

    def _listen(self) -> None:
        try:
            for _ in self.connection.stream(seed=self.seed):
                self.begun.set()
        except (HTTPException, OSError) as error:
            self.error = error
        self.ended_s = time.perf_counter()


def is_refused(server: Server, path: str, body: dict[str, Any] | None = None) -> str:
    """What a new request gets: 503, or no connection any more; never silence."""
    method = "GET" if body is None else "POST"
    try:
        answer = httpx.request(method, server.address + path, json=body, timeout=NOTICED_S)
    except httpx.TimeoutException:
        raise
    except httpx.TransportError as error:
        return type(error).__name__
    assert answer.status_code == 503, answer.text
    return "503"


def test_a_killed_engine_ends_all(server: Server, connections: list[Connection]) -> None:
    """Open streams on both break at once, nothing hangs, and vLLM ends all that it started.

    The engine is stopped first, so that a call to it and all streams are open when it is killed.
    """
    everything = psutil.Process(server.process.pid).children(recursive=True)
    listeners = [Listener(connection, seed) for seed, connection in enumerate(connections)]
    threads = [listener.start() for listener in listeners]
    assert all(listener.begun.wait(ANSWER_S) for listener in listeners)
    engine = server.engine()
    engine.suspend()
    with ThreadPoolExecutor(1) as pool:
        form = {"name": "Bert", "consent": "agreed by the speaker, in writing"}
        upload = pool.submit(send_voice, server, form, recording())
        time.sleep(0.5)
        assert not any(listener.ended_s for listener in listeners)
        assert not upload.done()
        engine.kill()
        killed_s = time.perf_counter()
        answer = upload.result(NOTICED_S)
        assert answer.status == 503
        assert answer.error["code"] == "engine_dead"
    for thread in threads:
        thread.join(NOTICED_S)
    assert all(listener.error is not None for listener in listeners)
    took_s = max(listener.ended_s for listener in listeners) - killed_s
    print(f"{N_CONNECTIONS} streams on {N_SERVERS} broke {took_s:.2f} s after the engine's death")
    assert took_s < NOTICED_S

    refusals = [is_refused(server, "/health")]
    while server.process.poll() is None:
        refusals += [is_refused(server, SPEECH, REQUEST), is_refused(server, "/health")]
        assert time.perf_counter() - killed_s < END_S
        time.sleep(0.1)
    print(f"new requests got {Counter(refusals)}")
    _, alive = psutil.wait_procs(everything, timeout=END_S)
    assert not alive
    print(f"all processes ended {time.perf_counter() - killed_s:.1f} s after the engine's death")
