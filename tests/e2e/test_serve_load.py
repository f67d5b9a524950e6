"""Many clients at once: each gets its own audio, and those that leave cost the others nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import httpx
import numpy as np
import pytest

from tests.helpers.runtime import (
    ANSWER_S,
    SPEECH,
    Server,
    assert_audio_reply,
    decode,
    send_audio_speech_request,
    send_many,
)

pytestmark = [
    pytest.mark.tts,
    pytest.mark.advanced_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

MODEL_HZ = 16_000
TEXTS = ("good morning.", "the weather is nice.", "we walked into town.", "they bought bread.")
# Batches of other sizes sum in another order; two steps of 16 bits bound what that does.
TOLERANCE = 2 / 32_768
MEMORY_GROWTH_BYTES = 64 << 20


def request(index: int, n_patches: int = 6) -> dict:
    return {
        "input": TEXTS[index % len(TEXTS)],
        "seed": index,
        "response_format": "pcm",
        "max_new_tokens": n_patches,
    }


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    assert len(found) == len(expected)
    assert np.abs(found - expected).max() <= TOLERANCE


def wait_until_idle(server: Server, within_s: float) -> float:
    """Seconds until neither queue nor engine holds a request."""
    started = time.monotonic()
    while time.monotonic() - started < within_s:
        names = ("voxnative_requests_running", "voxnative_requests_waiting")
        if not any(map(server.metric, (*names, "vllm:num_requests_running"))):
            return time.monotonic() - started
        time.sleep(0.05)
    raise AssertionError(f"requests are left after {within_s} s")


def test_sixteen_clients_get_what_each_gets_alone(speech_server: Server) -> None:
    requests = [request(index) for index in range(16)]
    together = asyncio.run(send_many(speech_server, requests))
    for body, reply in zip(requests, together, strict=True):
        found = assert_audio_reply(reply, body, MODEL_HZ)
        alone = send_audio_speech_request(speech_server, body)
        assert_same(found, decode(alone.body, "pcm", MODEL_HZ)[0])


def test_half_of_sixty_four_clients_leave(speech_server: Server) -> None:
    """The rest is unharmed; state and memory are back where they were."""
    body = request(3)
    alone = decode(send_audio_speech_request(speech_server, body).body, "pcm", MODEL_HZ)[0]
    engine = speech_server.engine()
    processes = [engine, *engine.children(recursive=True)]
    memory = sum(process.memory_info().rss for process in processes)
    aborts = speech_server.metric("voxnative_aborts_total")

    replies = asyncio.run(_half_leaves(speech_server, body, 64))

    assert len(replies) == 32
    for reply in replies:
        assert_same(decode(reply, "pcm", MODEL_HZ)[0], alone)
    wait_until_idle(speech_server, 20)
    assert speech_server.metric("vllm:kv_cache_usage_perc") == 0
    assert speech_server.metric("voxnative_aborts_total") == aborts + 32
    grown = sum(process.memory_info().rss for process in processes) - memory
    print(f"memory of the engine grew by {grown / 2**20:.1f} MiB")
    assert grown < MEMORY_GROWTH_BYTES


async def _half_leaves(server: Server, body: dict, n_clients: int) -> list[bytes]:
    """Every second client leaves: half of those at once, half after the first audio."""
    limits = httpx.Limits(max_connections=n_clients)
    replies: list[bytes] = []
    async with httpx.AsyncClient(
        base_url=server.address, timeout=ANSWER_S, limits=limits
    ) as client:

        async def stay() -> None:
            answer = await client.post(SPEECH, json=body)
            assert answer.status_code == 200
            replies.append(answer.content)

        async def leave_after_audio() -> None:
            async with client.stream("POST", SPEECH, json=body | {"max_new_tokens": 60}) as answer:
                await anext(answer.aiter_raw())

        async def leave_at_once() -> None:
            sent = asyncio.Event()

            async def note(event: str, _: dict) -> None:
                if event == "http11.send_request_body.complete":
                    sent.set()

            answer = asyncio.create_task(
                client.post(SPEECH, json=body | {"max_new_tokens": 60}, extensions={"trace": note})
            )
            await sent.wait()
            await asyncio.sleep(0.2)
            answer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answer

        kinds = (stay, leave_after_audio, stay, leave_at_once)
        async with asyncio.TaskGroup() as group:
            for index in range(n_clients):
                group.create_task(kinds[index % len(kinds)]())
    return replies


def test_leaving_aborts_within_a_step_or_two(speech_server: Server) -> None:
    body = {**request(0, 200), "input": "we walked along the river into the old town. " * 4}
    with (
        httpx.Client(base_url=speech_server.address, timeout=ANSWER_S) as client,
        client.stream("POST", SPEECH, json=body) as answer,
    ):
        next(answer.iter_raw())
    took_s = wait_until_idle(speech_server, 10)
    print(f"idle {took_s:.2f} s after the client left")


def test_a_stuck_reader_holds_nobody(speech_server: Server) -> None:
    """A client that reads nothing gets everything later; others are served meanwhile."""
    body = {**request(1, 12), "response_format": "wav", "sample_rate": 48_000, "stream": True}
    content = json.dumps(body).encode()
    host, port = speech_server.address.removeprefix("http://").split(":")
    head = f"POST {SPEECH} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    head += f"Connection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        stuck.settimeout(ANSWER_S)
        stuck.connect((host, int(port)))
        stuck.sendall(head.encode() + content)
        for index in range(3):
            reply = send_audio_speech_request(speech_server, request(index))
            assert_audio_reply(reply, request(index), MODEL_HZ)
        wait_until_idle(speech_server, 30)
        parts = []
        while part := stuck.recv(65_536):
            parts.append(part)
    received = b"".join(parts)
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"0\r\n\r\n")
    whole = send_audio_speech_request(speech_server, {**body, "stream": False})
    assert len(received) > len(whole.body)
