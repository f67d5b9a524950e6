"""Everything that is claimed of the GPU engine, in one report of resumable parts.

    python -m tests.perf.gpu_report all --out DIR          # on a CUDA machine
    python -m tests.perf.gpu_report parts serve --out DIR  # some of it; results are kept in DIR
    python -m tests.perf.gpu_report all --out DIR --device cpu --tiny   # a trial of the code

Each part writes DIR/PART.json and is left out where that file exists, unless --again. Several
parts run in a process each, and are joined into DIR/report.json with the table of the bar; so
does `report` alone. Parts:

    checkpoint  random weights of the published size, to --checkpoint
    stages      each stage in bf16 against fp32, deltas against the whole decode
    parts       milliseconds of each part against its floor, with and without kernels
    tiny        the shipped checkpoint: alone and in a batch, references, ends; no host sync;
                then its audio at several concurrencies, for tests/perf/words_wer.py
    engine      on one engine of that size: speed at fixed concurrency, random arrivals, gaps and
                capacity (serve.json), what the main stream does in a step (steps.json), a request
                alone against itself among others (among.json), what the device did (timeline.json)
    cramped     the last again, with preemptions
    invariant   the last two and the adapters' again with batch-invariant kernels
                (VLLM_BATCH_INVARIANT=1), where nothing may differ; and what they cost
    above       a request alone against itself among others, in steps and batches above every graph
                of the language models that was captured; batch-invariant too
    lora        32 streams with 0, 1, 8 and 32 LoRA adapters, and without LoRA; a request with an
                adapter alone against itself among others with other adapters
    peer        the peer's figures from the same job, where it is installed
    report      the joined report
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import voxnative
from tests.perf.full_size import write_full_size
from tests.perf.gpu_bar import bar_rows, correctness_rows
from voxnative.config import VoxConfig

FULL_SIZE = Path(tempfile.gettempdir()) / "voxnative-full-size"
FEW_GRAPHS = (1, 2, 4, 8)  # tokens of a step
TINY = Path(voxnative.__file__).parent / "checkpoints" / "tiny"


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
        settings = {
            "enable_prefix_caching": False,  # all streams say the same text
            "dtype": "bfloat16",
            "max_num_seqs": max_num_seqs,
            "max_model_len": 1024,
            "gpu_memory_utilization": 0.85,
            "additional_config": {"voxnative_engine": json.loads(self.arguments.engine)},
        }
        return settings | json.loads(self.arguments.settings)

    def keep(self, name: str, result: dict[str, Any]) -> None:
        """Write a result, complete or not, so that a job that is cut off leaves what it had."""
        text = json.dumps(result, indent=1, default=float)  # NumPy's numbers too
        (self.out / f"{name}.json").write_text(text)

    # Parts; each returns what its file holds.

    def part_checkpoint(self) -> dict[str, Any]:
        started = time.perf_counter()
        write_full_size(self.checkpoint, tiny=self.arguments.tiny, device=self.arguments.device)
        return {"directory": self.checkpoint.name, "s": round(time.perf_counter() - started, 1)}

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

        precision = "fp16" if self.is_cuda else "fp32"
        tables = {
            name: run(precision, kernels, fp8=False, compiles=False)
            for name, kernels in self._kernel_choices()
        }
        if self.is_cuda and self.arguments.full:
            tables["tf32 VAE"] = run("tf32", True, fp8=False, compiles=False)
            tables["compiled"] = run("fp16", False, fp8=False, compiles=True)
            tables["fp8 DiT"] = run("fp16", True, fp8=True, compiles=False)
        return tables

    def part_tiny(self) -> dict[str, Any]:
        # Read when vLLM is imported: a host sync in a step then ends the engine.
        os.environ.setdefault("VLLM_GPU_SYNC_CHECK", "error")
        return asyncio.run(self._speak_tiny())

    async def _speak_tiny(self) -> dict[str, Any]:
        from tests.perf.serving_load import engine
        from tests.perf.tiny_engine import behaviour, speak_words

        concurrencies = [n for n in (1, 16, 64, 128) if n <= max(self.arguments.concurrencies)]
        settings = self.engine_settings(max(concurrencies))
        settings |= {"max_model_len": 512, "enable_prefix_caching": True}
        async with engine(TINY, settings) as (speech, ready_s):
            report = {"ready_s": round(ready_s, 1), "settings": settings}
            report["sync_check"] = os.environ["VLLM_GPU_SYNC_CHECK"]
            report["behaviour"] = await behaviour(speech)
            self.keep("tiny_behaviour", report)
            report["words"] = await speak_words(speech, concurrencies, self.out)
        return report

    def part_engine(self) -> dict[str, Any]:
        return asyncio.run(self._on_one_engine())

    async def _on_one_engine(self) -> dict[str, Any]:
        from tests.perf.gpu_correctness import RECORDING_WORKER, isolation
        from tests.perf.serving_load import engine, serving_report

        arguments = self.arguments
        n_seqs = max(arguments.concurrencies)
        settings = self.engine_settings(n_seqs)
        if self.is_cuda:
            settings["worker_cls"] = RECORDING_WORKER  # records nothing before it is asked to
        async with engine(self.checkpoint, settings) as (speech, ready_s):
            about = {"ready_s": round(ready_s, 1), "settings": settings}
            print("ready", about, flush=True)
            served = await serving_report(
                speech,
                n_seqs,
                concurrencies=arguments.concurrencies,
                n_patches=self.n_patches,
                n_repeats=arguments.repeats,
                poisson_s=arguments.poisson_s,
                gap_s=arguments.gap_s,
                keep=lambda report: self.keep("serve", about | report),
            )
            self.keep("serve", about | served)
            if self.is_cuda:
                self.keep("steps", await self._time_steps(speech))
            if self.is_cuda and not arguments.speed_only:
                others = min(63, n_seqs - 1)
                self.keep("among", await isolation(speech, others, n_patches=24))
                self.keep("timeline", await self._profile_device(speech))
        return about

    async def _profile_device(self, speech: Any) -> dict[str, Any]:
        """The device's timeline over a second of steady decoding."""
        from tests.perf.load import our_stream, together

        results = {}
        for n_streams in [n for n in (1, 64) if n <= max(self.arguments.concurrencies)]:
            streams = asyncio.create_task(together(our_stream(speech, 96), n_streams))
            await asyncio.sleep(0.6)
            await speech._engine.collective_rpc("profile_device", args=(True,))
            await asyncio.sleep(0.3)
            (seen,) = await speech._engine.collective_rpc("profile_device", args=(False,))
            await streams
            results[str(n_streams)] = seen
            print("timeline", n_streams, seen, flush=True)
        return results

    async def _time_steps(self, speech: Any) -> dict[str, Any]:
        from tests.perf.load import our_stream, together

        results = {}
        for n_streams in [n for n in self.arguments.concurrencies if n <= 256]:
            start = our_stream(speech, 24)
            await speech._engine.collective_rpc("time_steps", args=(True,))
            await together(start, n_streams)
            (timed,) = await speech._engine.collective_rpc("time_steps", args=(False,))
            results[str(n_streams)] = timed
            print(n_streams, timed, flush=True)
        return results

    def part_cramped(self) -> dict[str, Any]:
        from tests.perf.gpu_correctness import RECORDING_WORKER, cramped_isolation

        if not self.is_cuda:
            return {"left_out": "tests/e2e/test_isolation.py covers the CPU engine"}
        settings = self.engine_settings(64) | {"worker_cls": RECORDING_WORKER}
        return asyncio.run(cramped_isolation(self.checkpoint, settings, n_others=63, n_patches=24))

    def part_invariant(self) -> dict[str, Any]:
        if not self.is_cuda:
            return {"left_out": "a CPU's kernels are not chosen by the batch's size"}
        os.environ["VLLM_BATCH_INVARIANT"] = "1"  # read when an engine starts
        return asyncio.run(self._with_invariant_kernels())

    async def _with_invariant_kernels(self) -> dict[str, Any]:
        from tests.perf.gpu_correctness import RECORDING_WORKER, cramped_isolation, isolation
        from tests.perf.lora_load import lora_isolation
        from tests.perf.serving_load import engine, serving_report

        arguments = self.arguments
        concurrencies = [n for n in arguments.concurrencies if n <= 256]
        n_seqs = max(concurrencies)
        settings = self.engine_settings(n_seqs) | {"worker_cls": RECORDING_WORKER}
        report: dict[str, Any] = {}

        def keep(name: str, result: dict[str, Any]) -> None:
            report[name] = result
            self.keep("invariant_so_far", report)
            print(name, result, flush=True)

        async with engine(self.checkpoint, settings) as (speech, ready_s):
            keep("ready_s", {"s": round(ready_s, 1)})
            keep("among", await isolation(speech, min(63, n_seqs - 1), n_patches=24))
            served = await serving_report(
                speech,
                n_seqs,
                concurrencies=concurrencies,
                n_patches=self.n_patches,
                n_repeats=arguments.repeats,
                poisson_s=arguments.poisson_s,
                gap_s=0,
                keep=lambda so_far: keep("serve", so_far),
            )
            keep("serve", served)
            keep("steps", await self._time_steps(speech))
        settings = self.engine_settings(64) | {"worker_cls": RECORDING_WORKER}
        keep(
            "cramped",
            await cramped_isolation(self.checkpoint, settings, n_others=63, n_patches=24),
        )
        adapters = self.checkpoint.parent / f"{self.checkpoint.name}-adapters"
        keep("lora", await lora_isolation(self.checkpoint, settings, adapters, rank=8))
        return report

    def part_above(self) -> dict[str, Any]:
        if not self.is_cuda:
            return {"left_out": "graphs are CUDA's"}
        os.environ["VLLM_BATCH_INVARIANT"] = "1"  # read when an engine starts
        return asyncio.run(self._above_every_graph())

    async def _above_every_graph(self) -> dict[str, Any]:
        from tests.perf.gpu_correctness import RECORDING_WORKER, isolation
        from tests.perf.serving_load import engine

        settings = self.engine_settings(64) | {"worker_cls": RECORDING_WORKER}
        settings["compilation_config"] = {"cudagraph_capture_sizes": list(FEW_GRAPHS)}
        async with engine(self.checkpoint, settings) as (speech, ready_s):
            about = {"ready_s": round(ready_s, 1), "graphs_for_steps_of": FEW_GRAPHS}
            return about | await isolation(speech, 63, n_patches=24)

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

    def part_lora(self) -> dict[str, Any]:
        from tests.perf.gpu_correctness import RECORDING_WORKER
        from tests.perf.lora_load import N_STREAMS, lora_report

        return asyncio.run(
            lora_report(
                self.checkpoint,
                self.engine_settings(N_STREAMS),
                self.checkpoint.parent / f"{self.checkpoint.name}-adapters",
                ranks=self.arguments.lora_ranks,
                n_patches=self.n_patches,
                n_repeats=self.arguments.repeats,
                recording_worker=RECORDING_WORKER if self.is_cuda else None,
                keep=lambda report: self.keep("lora_so_far", report),
            )
        )

    def _kernel_choices(self) -> list[tuple[str, bool]]:
        return [("kernels", True), ("plain", False)] if self.is_cuda else [("plain", False)]


PARTS = (
    "checkpoint",
    "stages",
    "parts",
    "tiny",
    "engine",
    "cramped",
    "invariant",
    "above",
    "lora",
    "peer",
)
RESULTS = (*PARTS, "serve", "steps", "among", "timeline")


def machine(job: Job) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if job.is_cuda else None
    return {"gpu": gpu, "cpu": platform.processor(), "torch": torch.__version__}


def joined(job: Job) -> dict[str, Any]:
    """All parts found, and the bar's rows with the peer's figures beside ours."""
    found = {
        name: json.loads(file.read_text())
        for name in RESULTS
        if (file := job.out / f"{name}.json").exists()
    }
    invariant = found.get("invariant", {}) | {"peer": found.get("peer", {})}
    if "above" in found:
        found["invariant"] = found.get("invariant", {}) | {"above": found.pop("above")}
    return {
        "machine": machine(job),
        "bar": bar_rows(found),
        "bar_batch_invariant": bar_rows(invariant),
        "correct": correctness_rows(found),
        "parts": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "report", "all"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, default=FULL_SIZE)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the shipped checkpoint's sizes")
    parser.add_argument("--again", action="store_true", help="run parts that have a result")
    parser.add_argument("--full", action="store_true", help="parts: every variant")
    parser.add_argument("--concurrencies", type=int, nargs="+", default=[1, 8, 32, 64, 128, 256])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64, 128])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lora-ranks", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--poisson-s", type=float, default=30.0)
    parser.add_argument("--gap-s", type=float, default=30.0)
    parser.add_argument(
        "--engine", default="{}", help="additional_config['voxnative_engine'], JSON"
    )
    parser.add_argument(
        "--speed-only", action="store_true", help="engine: speed and steps, to compare options"
    )
    parser.add_argument("--settings", default="{}", help="further engine settings, JSON")
    job = Job(parser.parse_args())
    job.out.mkdir(parents=True, exist_ok=True)
    wanted = job.arguments.parts
    names = PARTS if "all" in wanted else [name for name in PARTS if name in wanted]
    if len(names) == 1 and len(wanted) == 1:
        run_part(job, names[0])
        return
    failed = [name for name in names if run_in_own_process(job, name)]
    report = joined(job) | {"failed": failed}
    (job.out / "report.json").write_text(json.dumps(report, indent=1))
    for row in (*report["bar"], *report["bar_batch_invariant"], *report["correct"]):
        print(row, flush=True)
    print("failed:", ", ".join(failed) or "none", flush=True)


def run_part(job: Job, name: str) -> None:
    """Run one part, unless it has a result."""
    file = job.out / f"{name}.json"
    if file.exists() and not job.arguments.again:
        print(f"{name}: {file} exists", flush=True)
        return
    started = time.perf_counter()
    run: Callable[[], dict[str, Any]] = getattr(job, f"part_{name}")
    job.keep(name, run())
    print(f"{name}: {time.perf_counter() - started:.1f} s -> {file}", flush=True)


def run_in_own_process(job: Job, name: str) -> int:
    """As `run_part`: what one part takes or breaks is no matter of the next. Exit status."""
    others = [a for a in sys.argv[1:] if a not in job.arguments.parts]
    command = [sys.executable, "-m", "tests.perf.gpu_report", name, *others]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    main()
