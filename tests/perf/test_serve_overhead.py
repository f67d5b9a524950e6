"""What the server adds to the engine: HTTP, queue and encoding; prints JSON, asserts no times.

The same requests go through the offline API and through the server, and the server's own clock
(its histograms) tells how much of the first audio's time is spent outside it.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests.engines import RecordingEngine
from tests.helpers.runtime import ANSWER_S, SPEECH, Server

TEXT = "the morning train was late again, so we walked along the river into town."
CLIENTS = (1, 16, 64)
N_PATCHES = 6
TTFA = "voxnative_time_to_first_audio_seconds"


def ms(seconds: float) -> float:
    return round(1000 * seconds, 2)


async def one_client(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, float]:
    """First audio and whole time of one streamed answer, in seconds."""
    started = time.perf_counter()
    first_s = None
    async with client.stream("POST", SPEECH, json=body) as answer:
        assert answer.status_code == 200
        async for _ in answer.aiter_raw():
            first_s = first_s or time.perf_counter() - started
    assert first_s is not None
    return {"ttfa_s": first_s, "total_s": time.perf_counter() - started}


async def over_http(server: Server, bodies: list[dict[str, Any]]) -> list[dict[str, float]]:
    limits = httpx.Limits(max_connections=len(bodies))
    async with httpx.AsyncClient(
        base_url=server.address, timeout=ANSWER_S, limits=limits
    ) as client:
        await client.get("/health")  # the first connection is not what is measured
        return await asyncio.gather(*(one_client(client, body) for body in bodies))


def server_ttfa(server: Server) -> tuple[float, float]:
    return server.metric(f"{TTFA}_sum"), server.metric(f"{TTFA}_count")


def measure(server: Server, engine: RecordingEngine, n_clients: int) -> dict[str, Any]:
    seeds = range(n_clients)
    calls = [{"text": TEXT, "seed": seed, "max_steps": N_PATCHES} for seed in seeds]
    offline = [run.result for run in engine.run(*calls)]
    bodies = [
        {"input": TEXT, "seed": seed, "max_new_tokens": N_PATCHES, "response_format": "pcm"}
        for seed in seeds
    ]
    before = server_ttfa(server)
    online = asyncio.run(over_http(server, bodies))
    after = server_ttfa(server)
    assert after[1] - before[1] == n_clients
    inside_s = (after[0] - before[0]) / n_clients
    client_ttfa_s = statistics.mean(run["ttfa_s"] for run in online)
    wall = {
        "offline": statistics.mean(run.wall_s for run in offline),
        "http": statistics.mean(run["total_s"] for run in online),
    }
    return {
        "clients": n_clients,
        "patches": N_PATCHES,
        "ttfa_offline_ms": ms(statistics.mean(run.ttfa_s for run in offline)),
        "ttfa_in_server_ms": ms(inside_s),
        "ttfa_over_http_ms": ms(client_ttfa_s),
        "ttfa_added_ms": ms(client_ttfa_s - inside_s),
        "request_offline_ms": ms(wall["offline"]),
        "request_over_http_ms": ms(wall["http"]),
        "added_per_chunk_ms": ms((wall["http"] - wall["offline"]) / N_PATCHES),
    }


@pytest.mark.tts
@pytest.mark.full_model
@pytest.mark.hardware_test(res="cpu", num_cards=0)
def test_overhead(speech_server: Server, speaking: RecordingEngine, repo: Path) -> None:
    measure(speech_server, speaking, 1)  # both are warm from here on
    report = {
        "machine": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "runs": [measure(speech_server, speaking, n) for n in CLIENTS],
    }
    text = json.dumps(report, indent=1)
    print(text)
    folder = repo / "out" / "perf"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server_overhead.json").write_text(text)
