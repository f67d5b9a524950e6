"""What a second GPU brings: throughput, first audio, mixed-up answers, killed replicas.

    python -m tests.perf.multi_gpu_report --model DIRECTORY --out report.json

Each layout is a server of its own, one after the other: "one" (a single engine), "dp2" (two
replicas), "dp2_fronts" (the same behind four HTTP processes), "tp2" (one engine over two devices).
Asserts nothing about time; the report is written anew after each layout, so that a run that is cut
short leaves what it has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np
import psutil

from tests.perf.http_streams import LEAD_S, SPEECH, Clients, Stream, read_stream, summary

LAYOUTS: dict[str, dict[str, int]] = {
    "one": {},
    "dp2": {"data-parallel-size": 2},
    "dp2_fronts": {"data-parallel-size": 2, "api-server-count": 4},
    "tp2": {"tensor-parallel-size": 2},
}
# At most 80 tokens, else it goes in pieces; full_size's tokenizer has one for each character.
TEXT = "number {}: the morning train was late again, so we walked along the river."
N_CHECKED = 16
N_ALONE = 4  # of the long requests, for what goes on after a death
N_AFTER = 8  # requests sent right after a replica's death
START_S = 420
KILL_AFTER_S = 1.0
WATCHED_S = 30


def body(seed: int, n_patches: int) -> dict[str, Any]:
    """A request whose text and noise are its own."""
    text = TEXT.format(seed)
    return {"input": text, "seed": seed, "max_new_tokens": n_patches, "response_format": "pcm"}


@contextmanager
def served(arguments: argparse.Namespace, layout: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """A server in this layout until the block ends: its address and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    n_replicas = LAYOUTS[layout].get("data-parallel-size", 1)
    places = -(-max(arguments.streams) // n_replicas)
    sections = {
        "voxnative": {"max_queue": 2 * max(arguments.streams)},
        "voxnative_engine": json.loads(arguments.engine),
    }
    flags = {"host": "127.0.0.1", "port": port, "max-num-seqs": places, **LAYOUTS[layout]}
    command = [sys.executable, "-m", "voxnative.cli", "serve"]
    command += [str(arguments.model)] if arguments.model else []
    command += [f"--{name}={value}" for name, value in flags.items()]
    command += [f"--additional-config={json.dumps(sections)}", *arguments.serve_flags]
    log = arguments.out.with_name(f"{arguments.out.stem}_{layout}.log")
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_until_healthy(address, process, log)
            yield address, process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_healthy(address: str, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended: {log.read_text()[-3000:]}")
        try:
            if httpx.get(f"{address}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise RuntimeError(f"not healthy after {START_S} s: {log.read_text()[-3000:]}")


async def measure(clients: Clients, address: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Load at every number of streams, and the audio of the first few requests alone and in it."""
    n_patches, checked = arguments.patches, min(N_CHECKED, max(arguments.streams))
    alone = [await clients.alone(address, body(i, n_patches)) for i in range(checked)]
    again = [await clients.alone(address, body(0, n_patches)) for _ in range(4)]
    report: dict[str, Any] = {
        "alone": summary(alone),
        "one_seed_distinct_answers": len({stream.pcm for stream in again}),
        "load": {},
    }
    for n_streams in arguments.streams:
        bodies = [body(i, n_patches) for i in range(n_streams)]
        await clients.together(address, bodies)  # the first run of a size is not what is measured
        runs = [await clients.together(address, bodies) for _ in range(arguments.repeats)]
        results = sorted(
            (summary(run) for run in runs), key=lambda result: result.get("times_real_time", 0.0)
        )
        report["load"][str(n_streams)] = results[len(results) // 2] | {
            "repeats": arguments.repeats,
            "crosstalk": crosstalk(alone, runs[-1]),
        }
        print(n_streams, report["load"][str(n_streams)], flush=True)
    return report | {"alone_streams": alone}


def crosstalk(alone: list[Stream], loaded: list[Stream]) -> dict[str, Any]:
    """How well each answer under load matches its own request alone, and the others'."""
    own, foreign, n_mixed = [], [], 0
    for index, stream in enumerate(loaded[: len(alone)]):
        matches = [likeness(stream.samples, other.samples) for other in alone]
        rest = [match for i, match in enumerate(matches) if i != index]
        own.append(matches[index])
        foreign.append(max(rest, default=0.0))
        n_mixed += int(max(matches) > matches[index])
    return {
        "checked": len(own),
        "closer_to_another_request": n_mixed,
        "own_cosine_min": round(min(own), 6),
        "foreign_cosine_max": round(max(foreign), 6),
    }


def likeness(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of the part that both have; 0 where one is empty."""
    n = min(len(a), len(b))
    norm = float(np.linalg.norm(a[:n]) * np.linalg.norm(b[:n]))
    return float(a[:n] @ b[:n]) / norm if norm else 0.0


def against(one: list[Stream], other: list[Stream]) -> dict[str, float]:
    """The same requests alone in two layouts."""
    pairs = [(a.samples, b.samples) for a, b in zip(one, other, strict=True)]
    return {
        "cosine_min": round(min(likeness(a, b) for a, b in pairs), 8),
        "max_difference": round(max(float(np.abs(a - b).max()) for a, b in pairs), 6),
    }


async def killed_replica(
    clients: Clients, address: str, process: subprocess.Popen, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Kill one engine process under load, then the other; what open and later requests see."""
    children = psutil.Process(process.pid).children(recursive=True)
    engines = [child for child in children if "EngineCore_DP" in " ".join(child.cmdline())]
    n_streams = max(2, max(arguments.streams) // 2)
    bodies = [body(i, 4 * arguments.patches) for i in range(n_streams)]
    alone = [await clients.alone(address, bodies[i]) for i in range(min(N_ALONE, n_streams))]
    load = asyncio.create_task(clients.together(address, bodies))
    await asyncio.sleep(LEAD_S + KILL_AFTER_S)
    running = _running(address, len(engines))
    engines[-1].kill()
    killed_s = time.monotonic()
    async with aiohttp.ClientSession(address) as session:  # the client processes are busy
        new = await asyncio.gather(*(read_stream(session, body(i, 4)) for i in range(N_AFTER)))
    health = httpx.get(f"{address}/health", timeout=10).status_code
    streams = await load
    failed = [stream for stream in streams if not stream.is_whole]
    finished = [
        (before, after) for before, after in zip(alone, streams, strict=False) if after.is_whole
    ]
    result = {
        "replicas": len(engines),
        "open_requests": n_streams,
        "running_before_by_replica": running,
        "finished": n_streams - len(failed),
        "failed": len(failed),
        "errors": sorted({str(stream.error) for stream in failed}),
        "last_error_after_s": round(max((s.ended_s - killed_s for s in failed), default=0.0), 2),
        "new_requests": dict(Counter(str(stream.status) for stream in new)),
        "new_requests_whole": sum(stream.is_whole for stream in new),
        "new_requests_answered_after_s": round(max(s.ended_s for s in new) - killed_s, 2),
        "health_after": health,
        "finished_checked": len(finished),
    }
    if finished:
        before, after = zip(*finished, strict=True)
        result["finished_against_alone"] = against(list(before), list(after))
    for engine in engines[:-1]:
        engine.kill()
    killed_s = time.monotonic()
    return result | {"all_killed_503_after_s": await _until_refused(address, killed_s)}


def _running(address: str, n_replicas: int) -> list[float]:
    """Requests in each replica's batch, by vLLM's metrics."""
    lines = httpx.get(f"{address}/metrics", timeout=10).text.splitlines()
    found = [line for line in lines if line.startswith("vllm:num_requests_running{")]
    return [
        float(line.rpartition(" ")[2])
        for index in range(n_replicas)
        for line in found
        if f'engine="{index}"' in line
    ]


async def _until_refused(address: str, since_s: float) -> float | None:
    """Seconds until `/health` and a request both say 503; None: they never did."""
    async with httpx.AsyncClient(base_url=address, timeout=10) as client:
        while time.monotonic() - since_s < WATCHED_S:
            health = await client.get("/health")
            if health.status_code == 503:
                answer = await client.post(SPEECH, json=body(0, 2))
                if answer.status_code == 503:
                    return round(time.monotonic() - since_s, 2)
            await asyncio.sleep(0.05)
    return None


def machine() -> dict[str, Any]:
    import torch

    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "torch": torch.__version__,
        "voxnative": version("voxnative"),
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="checkpoint; the shipped one when left out")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 64, 128, 256])
    parser.add_argument("--patches", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engine", default="{}", help="JSON: the section voxnative_engine")
    parser.add_argument("--clients", type=int, default=8, help="client processes")
    parser.add_argument("serve_flags", nargs="*", help="further flags of voxnative serve, after --")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"machine": machine(), "patches": arguments.patches, "layouts": {}}
    alone: dict[str, list[Stream]] = {}
    clients = Clients(arguments.clients)
    try:
        for layout in arguments.layouts:
            started = time.monotonic()
            with served(arguments, layout) as (address, process):
                ready_s = round(time.monotonic() - started, 1)
                result = asyncio.run(measure(clients, address, arguments))
                alone[layout] = result.pop("alone_streams")
                report["layouts"][layout] = {"ready_s": ready_s} | result
                if "one" in alone and layout != "one":
                    result = against(alone["one"], alone[layout])
                    report["layouts"][layout]["audio_against_one"] = result
                arguments.out.write_text(json.dumps(report, indent=1))
                if layout == "dp2":
                    run = killed_replica(clients, address, process, arguments)
                    report["layouts"][layout]["killed_replica"] = asyncio.run(run)
            report["times_one"] = ratios(report["layouts"])
            arguments.out.write_text(json.dumps(report, indent=1))
    finally:
        clients.close()
    print(json.dumps(report, indent=1))


def ratios(layouts: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Throughput of each layout as a multiple of one engine's, by number of streams."""
    one = layouts.get("one", {}).get("load", {})
    return {
        name: {
            n: round(run["times_real_time"] / one[n]["times_real_time"], 3)
            for n, run in layout["load"].items()
            if "times_real_time" in run and "times_real_time" in one.get(n, {})
        }
        for name, layout in layouts.items()
        if name != "one"
    }


if __name__ == "__main__":
    main()
