"""Everything that is claimed of the GPU engine, in one report of resumable parts.

    python -m tests.perf.gpu_report all --out DIR          # on a CUDA machine
    python -m tests.perf.gpu_report parts serve --out DIR  # some of it; results are kept in DIR
    python -m tests.perf.gpu_report all --out DIR --device cpu --tiny   # a trial of the code

Each part writes DIR/PART.json and is left out where that file exists, unless --again. `report`
joins them into DIR/report.json with the table of the bar. Parts:

    checkpoint  random weights of the published size, to --checkpoint
    stages      each stage in bf16 against fp32, deltas against the whole decode
    parts       milliseconds of each part against its floor, with and without kernels
    serve       speed at fixed concurrency, random arrivals, gaps, capacity
    isolation   a request alone against itself among others, also with preemptions
    steps       what the main stream does in a step, timed inside the engine
    words       audio of the trained checkpoint at several concurrencies, for `transcribe`
    peer        the peer's figures from the same job, where it is installed
    report      the joined report
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import voxnative
from tests.perf.full_size import write_full_size
from voxnative.config import VoxConfig

TINY = Path(voxnative.__file__).parent / "checkpoints" / "tiny"
SENTENCES = (
    "the morning train was late again.",
    "we walked along the river into town.",
    "please open the window a little.",
    "the long winter is over at last.",
)


class Job:
    """One call of the report: where things are and how much to run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.is_cuda = arguments.device == "cuda"
        self.device = torch.device(arguments.device)
        self.checkpoint: Path = arguments.checkpoint
        self.n_patches = 64 if not arguments.tiny else 12
        self.out: Path = arguments.out

    @property
    def config(self) -> VoxConfig:
        return VoxConfig.from_dir(self.checkpoint)

    def engine_settings(self, max_num_seqs: int) -> dict[str, Any]:
        """Settings of an engine for this job."""
        if not self.is_cuda:
            return {"max_num_seqs": max_num_seqs, "max_model_len": 512}
        return {
            "enable_prefix_caching": False,  # all streams say the same text
            "dtype": "bfloat16",
            "max_num_seqs": max_num_seqs,
            "max_model_len": 1024,
            "gpu_memory_utilization": 0.85,
            "additional_config": {"voxnative_engine": json.loads(self.arguments.engine)},
        }

    # Parts; each returns what its file holds.

    def part_checkpoint(self) -> dict[str, Any]:
        started = time.perf_counter()
        write_full_size(self.checkpoint, tiny=self.arguments.tiny, device=self.arguments.device)
        return {"directory": str(self.checkpoint), "s": round(time.perf_counter() - started, 1)}

    def part_stages(self) -> dict[str, Any]:
        from tests.perf.gpu_correctness import stages_report

        return {
            name: stages_report(self.config, self.device, kernels=kernels)
            for name, kernels in self._kernel_choices()
        }

    def part_parts(self) -> dict[str, Any]:
        from tests.perf.parts import parts_report

        def run(vae_precision: str, kernels: bool, *, fp8: bool, compiles: bool) -> dict[str, Any]:
            return parts_report(
                self.config,
                self.device,
                batches=self.arguments.batches,
                kernels=kernels,
                fp8=fp8,
                compiles=compiles,
                vae_precision=vae_precision,
                n_repeats=30 if self.is_cuda else 3,
            )

        precision = "tf32" if self.is_cuda else "fp32"
        tables = {
            name: run(precision, kernels, fp8=False, compiles=False)
            for name, kernels in self._kernel_choices()
        }
        if self.is_cuda and self.arguments.full:
            tables["fp16 VAE"] = run("fp16", True, fp8=False, compiles=False)
            tables["compiled"] = run("tf32", False, fp8=False, compiles=True)
            tables["fp8 DiT"] = run("tf32", True, fp8=True, compiles=False)
        return tables

    def part_serve(self) -> dict[str, Any]:
        from tests.perf.serving_load import serving_report

        concurrencies = self.arguments.concurrencies
        return asyncio.run(
            serving_report(
                self.checkpoint,
                self.engine_settings(max(concurrencies)),
                concurrencies=concurrencies,
                n_patches=self.n_patches,
                n_repeats=self.arguments.repeats,
                poisson_s=self.arguments.poisson_s,
                gap_s=self.arguments.gap_s,
            )
        )

    def part_isolation(self) -> dict[str, Any]:
        from tests.perf.gpu_correctness import isolation_report

        if not self.is_cuda:
            return {"left_out": "tests/e2e/test_isolation.py covers the CPU engine"}
        settings = self.engine_settings(64)
        return asyncio.run(isolation_report(self.checkpoint, settings, n_others=63, n_patches=24))

    def part_steps(self) -> dict[str, Any]:
        if not self.is_cuda:
            return {"left_out": "needs CUDA events"}
        return asyncio.run(self._time_steps())

    async def _time_steps(self) -> dict[str, Any]:
        from tests.perf.gpu_correctness import RECORDING_WORKER
        from tests.perf.load import our_stream, together
        from tests.perf.serving_load import engine

        concurrencies = [n for n in self.arguments.concurrencies if n <= 128]
        settings = self.engine_settings(max(concurrencies)) | {"worker_cls": RECORDING_WORKER}
        results = {}
        async with engine(self.checkpoint, settings) as (speech, _):
            for n_streams in concurrencies:
                start = our_stream(speech, 32)
                await together(start, n_streams)
                await speech._engine.collective_rpc("time_steps", args=(True,))
                await together(start, n_streams)
                (timed,) = await speech._engine.collective_rpc("time_steps", args=(False,))
                results[str(n_streams)] = timed
                print(n_streams, timed, flush=True)
        return results

    def part_words(self) -> dict[str, Any]:
        return asyncio.run(self._speak_words())

    async def _speak_words(self) -> dict[str, Any]:
        from voxnative.async_api import AsyncVoxNative

        concurrencies = [n for n in (1, 16, 64, 128) if n <= max(self.arguments.concurrencies)]
        settings = self.engine_settings(max(concurrencies))
        lengths: dict[str, list[int]] = {}
        async with AsyncVoxNative(TINY, **(settings | {"max_model_len": 512})) as speech:
            for n_streams in concurrencies:
                # One stream: each sentence after the other; else as many at once.
                n_calls = max(n_streams, len(SENTENCES))
                gate = asyncio.Semaphore(n_streams)
                results = await asyncio.gather(
                    *(_speak_sentence(speech, i, gate) for i in range(n_calls))
                )
                lengths[str(n_streams)] = [r.n_patches for r in results]
                pcm = {
                    f"{i:03d}": (32767 * r.samples).astype(np.int16) for i, r in enumerate(results)
                }
                np.savez_compressed(self.out / f"words_{n_streams:03d}.npz", **pcm)
        return {"patches": lengths, "sentences": SENTENCES, "rate_hz": 16_000}

    def part_peer(self) -> dict[str, Any]:
        from tests.perf.peer import is_installed, peer_report

        if not self.is_cuda or not is_installed():
            return {"left_out": "nano-vllm-voxcpm is not installed"}
        return asyncio.run(
            peer_report(
                self.checkpoint,
                concurrencies=[n for n in self.arguments.concurrencies if n <= 128],
                n_patches=self.n_patches,
                n_repeats=self.arguments.repeats,
                rate_hz=self.config.vae.out_sample_rate_hz,
            )
        )

    def _kernel_choices(self) -> list[tuple[str, bool]]:
        return [("kernels", True), ("plain", False)] if self.is_cuda else [("plain", False)]


async def _speak_sentence(speech: Any, index: int, gate: asyncio.Semaphore) -> Any:
    n = len(SENTENCES)
    async with gate:
        return await speech.synthesize(SENTENCES[index % n], seed=index // n, cfg=3.0)


PARTS = ("checkpoint", "stages", "parts", "serve", "isolation", "steps", "words", "peer")


def machine(job: Job) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if job.is_cuda else None
    return {"gpu": gpu, "cpu": platform.processor(), "torch": torch.__version__}


def joined(job: Job) -> dict[str, Any]:
    """All parts found, and the bar's rows with the peer's figures beside ours."""
    found = {
        name: json.loads(file.read_text())
        for name in PARTS
        if (file := job.out / f"{name}.json").exists()
    }
    return {"machine": machine(job), "bar": bar_rows(found), "parts": found}


def bar_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Ours, the peer's and their ratio, for each row of the bar that was measured."""
    ours = found.get("serve", {}).get("together", {})
    peer = found.get("peer", {}).get("together", {})

    def pick(runs: dict[str, Any], n: str, *keys: str) -> float | None:
        value: Any = runs.get(n, {})
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def peak(runs: dict[str, Any]) -> float | None:
        return max((r.get("total_real_time_factor", 0.0) for r in runs.values()), default=None)

    def capacity(runs: dict[str, Any]) -> int | None:
        in_time = [int(n) for n, r in runs.items() if r.get("late_chunks") == 0]
        return max(in_time, default=None)

    first_p99 = "ttfa_ms", "p99"
    serve = found.get("serve", {})
    rows = [
        ("RTF, one stream", "1", ("rtf_median",), 0.055, 0.030),
        ("first audio, one stream, ms", "1", ("ttfa_ms", "p50"), 30, 18),
        ("total at 64 streams", "64", ("total_real_time_factor",), 330, 600),
        ("first audio p99, 64 at once, ms", "64", first_p99, 120, 60),
    ]
    measured = [
        (name, pick(ours, n, *keys), pick(peer, n, *keys), required, aim)
        for name, n, keys, required, aim in rows
    ]
    measured += [
        ("peak total", peak(ours), peak(peer), 400, 700),
        ("first audio p99, Poisson at 70 %, ms", pick(serve, "poisson", *first_p99), None, 150, 60),
        ("most streams with every chunk in time", capacity(ours), capacity(peer), 256, 400),
    ]
    return [
        {
            "row": name,
            "ours": ours_value,
            "peer": peer_value,
            "ratio": round(ours_value / peer_value, 3) if ours_value and peer_value else None,
            "required": required,
            "aim": aim,
        }
        for name, ours_value, peer_value, required, aim in measured
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "report", "all"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, default=Path("/tmp/voxnative-full-size"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the shipped checkpoint's sizes")
    parser.add_argument("--again", action="store_true", help="run parts that have a result")
    parser.add_argument("--full", action="store_true", help="parts: every variant")
    parser.add_argument("--concurrencies", type=int, nargs="+", default=[1, 8, 32, 64, 128, 256])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64, 128])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--poisson-s", type=float, default=30.0)
    parser.add_argument("--gap-s", type=float, default=30.0)
    parser.add_argument(
        "--engine", default="{}", help="additional_config['voxnative_engine'], JSON"
    )
    job = Job(parser.parse_args())
    job.out.mkdir(parents=True, exist_ok=True)
    wanted = job.arguments.parts
    names = PARTS if "all" in wanted else [name for name in PARTS if name in wanted]
    for name in names:
        file = job.out / f"{name}.json"
        if file.exists() and not job.arguments.again:
            print(f"{name}: {file} exists", flush=True)
            continue
        started = time.perf_counter()
        run: Callable[[], dict[str, Any]] = getattr(job, f"part_{name}")
        result = run()
        file.write_text(json.dumps(result, indent=1))
        print(f"{name}: {time.perf_counter() - started:.1f} s -> {file}", flush=True)
    report = joined(job)
    (job.out / "report.json").write_text(json.dumps(report, indent=1))
    for row in report["bar"]:
        print(row, flush=True)


if __name__ == "__main__":
    main()
