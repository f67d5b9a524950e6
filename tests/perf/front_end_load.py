"""vLLM's server with our routes under load: CPU a chunk on both sides, and first audio.

The engine core is `scripted_core`: it never waits for anybody and gives every request that is
there a chunk a step, from the first request on. Client and server compete where there are few
cores.

    python -m tests.perf.front_end_load [--streams 128] [--requests 256] [--patches 64]
        [--vary] [--step-ms 31] [--reader bench|aiohttp] [--processes 1] [--format pcm]
        [--repeats 3] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from tests.checkpoints import write_checkpoint
from tests.perf.front_end_http import N_CHARS, Served
from tests.perf.load import TEXT
from tests.perf.load_client import READERS, LoadClients
from tests.perf.scripted_core import ScriptedCore

# Chunks of the published size, 160 ms at 48 kHz.
CHUNK_SAMPLES = 7_680
CHUNK_S = 0.16
AUDIO_VAE = {
    "encoder_rates": [2, 5, 8, 8],
    "decoder_rates": [8, 6, 5, 8],
    "out_sample_rate": 48_000,
}


async def one_run(
    served: Served, clients: LoadClients, arguments: argparse.Namespace, profiled: bool
) -> dict[str, Any]:
    """All requests, `streams` of them under way at any time."""
    n_requests, n_patches = arguments.requests, arguments.patches
    body = {
        "input": TEXT[:N_CHARS],
        "response_format": arguments.format,
        "stream": True,
        "max_silence_s": 0.0,
    }
    random = np.random.default_rng(n_requests)
    spread = n_patches // 2 if arguments.vary else 0
    patches = random.integers(n_patches - spread, n_patches + spread + 1, n_requests).tolist()
    bodies = [body | {"seed": seed, "max_new_tokens": n} for seed, n in enumerate(patches)]
    profile = cProfile.Profile()
    cpu = os.times()
    if profiled:
        profile.enable()
    share = await clients.read(served.address, bodies, arguments.streams)
    profile.disable()
    user_s, system_s = (now - before for now, before in zip(os.times()[:2], cpu[:2], strict=True))
    if profiled:
        pstats.Stats(profile).sort_stats("tottime").print_stats(60)
        pstats.Stats(profile).sort_stats("cumulative").print_stats(120)
    answers, n_chunks = share.answers, sum(patches)
    failed = [answer.error for answer in answers if answer.error is not None]
    assert not failed, failed[0]
    if arguments.format == "pcm":
        assert sum(answer.n_samples for answer in answers) == n_chunks * CHUNK_SAMPLES
    first_ms = np.array([1000 * (answer.first_s - answer.sent_s) for answer in answers])
    wall_s = max(a.ended_s for a in answers) - min(a.sent_s for a in answers)
    return {
        "server_cpu_us_a_chunk": 1e6 * (user_s + system_s) / n_chunks,
        "of_it_the_kernel": 1e6 * system_s / n_chunks,
        "client_cpu_us_a_chunk": 1e6 * share.cpu_s / n_chunks,
        "reads_a_chunk": sum(answer.n_pieces for answer in answers) / n_chunks,
        "ttfa_median_ms": float(np.median(first_ms)),
        "ttfa_p99_ms": float(np.percentile(first_ms, 99)),
        "wall_s": wall_s,
        "shortest_wall_s": n_chunks / arguments.streams * arguments.step_ms / 1000,
        "audio_s_a_second": n_chunks * CHUNK_S / wall_s,
    }


async def measure(arguments: argparse.Namespace, model: Path, core: ScriptedCore) -> dict[str, Any]:
    clients = LoadClients(arguments.reader, arguments.processes)
    async with Served(model, core, max(arguments.streams, 8)) as served:
        core.speak_on(arguments.step_ms / 1000)
        await one_run(served, clients, arguments, False)  # imports and first calls
        load = os.getloadavg()[0]
        runs = [await one_run(served, clients, arguments, False) for _ in range(arguments.repeats)]
        if arguments.profile:
            await one_run(served, clients, arguments, True)
    clients.close()
    return {
        **{k: v for k, v in vars(arguments).items() if k != "profile"},
        "load_average": round(load, 2),
        "runs": {k: [round(run[k], 2) for run in runs] for k in runs[0]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--patches", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=31.0)
    parser.add_argument("--reader", choices=READERS, default="bench")
    parser.add_argument("--vary", action="store_true", help="patches +-50 %%: no common end")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--format", default="pcm")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        core = ScriptedCore(folder, CHUNK_SAMPLES)
        try:
            model = write_checkpoint(Path(folder) / "checkpoint", audio_vae_config=AUDIO_VAE)
            print(json.dumps(uvloop.run(measure(arguments, model, core)), indent=1))
        finally:
            core.close()


if __name__ == "__main__":
    main()
