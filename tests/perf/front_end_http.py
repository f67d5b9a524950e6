"""Host time of vLLM's server with our routes, a request and a chunk; as `front_end`, over HTTP.

    python -m tests.perf.front_end_http [--streams 64] [--patches 40] [--step-ms 24]
        [--repeats 5] [--profile hand_over|chunks] [--format pcm]

The text is as long as the shipped checkpoint speaks at once, so that it is one engine request.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop

from tests.perf.front_end import Collections, Cpu, add_arguments, figures, report
from tests.perf.http_streams import Clients
from tests.perf.load import TEXT
from tests.perf.scripted_core import ScriptedCore
from voxnative.async_api import SHIPPED_CHECKPOINT
from voxnative.config import VoxConfig
from voxnative.serving import launcher

N_CHARS = 77  # and the word's start, of at most 80 tokens
QUIET_S = 0.5


class Served:
    """A server in this process around a scripted core, and its clients in another one."""

    def __init__(self, model: Path, core: ScriptedCore, max_num_seqs: int) -> None:
        flags = [str(model), "--host", "127.0.0.1", "--port", "0", "--disable-uvicorn-access-log"]
        self._args = launcher.parse([*flags, "--max-num-seqs", str(max_num_seqs)])
        self._core = core
        self._clients = Clients(1)
        self.address = ""

    async def __aenter__(self) -> Served:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.api_server.entry import build_and_serve
        from vllm.entrypoints.launchers.launcher import setup_server
        from vllm.v1.engine.async_llm import AsyncLLM

        engine_args = AsyncEngineArgs.from_cli_args(self._args)
        self._engine = AsyncLLM.from_vllm_config(
            engine_args.create_engine_config(),
            enable_log_requests=engine_args.enable_log_requests,
            disable_log_stats=engine_args.disable_log_stats,
            client_addresses=self._core.addresses,
        )
        _, self._socket = setup_server(self._args, reuse_port=False)
        port = self._socket.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self._core.speak(1, 0.0)  # the adapter warms the engine up
        served = build_and_serve(self._engine, self.address, self._socket, self._args)
        self._serving = asyncio.create_task(served)
        while True:
            with suppress(ConnectionRefusedError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return self
            await asyncio.sleep(0.1)

    async def __aexit__(self, *exc_info: object) -> None:
        self._clients.close()
        self._engine.shutdown()
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        self._socket.close()

    async def run(self, arguments: argparse.Namespace, part: str | None) -> dict[str, Any]:
        """`streams` requests at once, all their chunks read by the clients."""
        n_streams, n_patches = arguments.streams, arguments.patches
        body = {
            "input": TEXT[:N_CHARS],
            "response_format": arguments.format,
            "stream": True,
            "max_new_tokens": n_patches,
            "max_silence_s": 0.0,
        }
        bodies = [body | {"seed": seed} for seed in range(n_streams)]
        profile, collections = cProfile.Profile(), Collections()
        self._core.arrivals_s()
        cpu = Cpu()
        if part == "hand_over":
            profile.enable()
        reading = asyncio.create_task(self._clients.together(self.address, bodies))
        arrivals: list[float] = []
        while len(arrivals) < n_streams:
            await asyncio.sleep(QUIET_S)
            arrivals += self._core.arrivals_s()
        profile.disable()
        hand_over, gc_hand_over_s = cpu.since(), collections.seconds
        cpu = Cpu()
        if part == "chunks":
            profile.enable()
        self._core.speak(n_streams, arguments.step_ms / 1000)
        streams = await reading
        profile.disable()
        chunks, n_chunks = cpu.since(), n_streams * n_patches
        collections.close()
        assert all(stream.is_whole for stream in streams), streams[0].error
        sent_s = min(stream.sent_s for stream in streams)  # of one clock, like `perf_counter`
        if part is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(50)
            pstats.Stats(profile).sort_stats("cumulative").print_stats(90)
        return figures(sent_s, arrivals, hand_over, chunks, n_chunks, gc_hand_over_s, collections)


async def measure(arguments: argparse.Namespace, model: Path, core: ScriptedCore) -> dict[str, Any]:
    async with Served(model, core, max(arguments.streams, 8)) as served:
        await served.run(arguments, None)  # imports and first calls
        runs = [await served.run(arguments, None) for _ in range(arguments.repeats)]
        if arguments.profile:
            await served.run(arguments, arguments.profile)
    return report(arguments, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--format", default="pcm")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = SHIPPED_CHECKPOINT
        core = ScriptedCore(folder, VoxConfig.from_dir(model).patch_samples_out)
        try:
            print(json.dumps(uvloop.run(measure(arguments, model, core)), indent=1))
        finally:
            core.close()


if __name__ == "__main__":
    main()
