"""``voxnative bench profile``: where one decode step's time goes, beside what it could take."""

from __future__ import annotations

import asyncio
import json
import statistics
from pathlib import Path
from typing import Any

from voxnative.bench.dataset import make_tasks, read_dataset
from voxnative.bench.engine_target import EngineTarget, offline_settings
from voxnative.bench.errors import BenchError
from voxnative.bench.load import closed_loop
from voxnative.bench.machine import machine_facts
from voxnative.bench.matrix import Row
from voxnative.bench.part_costs import step_costs
from voxnative.bench.paths import find_dataset
from voxnative.bench.record import RequestRecord, SpeechTask
from voxnative.bench.server_process import model_of
from voxnative.bench.target import time_request

WORKER = "voxnative.engine.profiling_worker.ProfilingWorker"
ROUNDS = 2  # requests a stream, after one of warm-up
_MS = 1000.0
_PARTS = ("base_lm", "residual_lm", "stop_head", "dit", "local_encoder", "vae_decoder")


def profile_row(row: Row, matrix: Path, out: Path, batches: list[int]) -> str:
    """Run the engine of a row with clocks in it; writes ``profile.json`` and ``profile.md``.

    Args:
        row: server, dataset and sampling fields come from it, its loads do not.
        matrix: the row's file.
        out: folder of the two files.
        batches: requests at once, one profile each.

    Returns:
        The Markdown.

    Raises:
        BenchError: the machine is no CPU, or no step had so many requests.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        raise BenchError(
            "profile: its clocks read a CPU's time, and a GPU's kernels run behind them; valid:"
            " on a CPU (tests/perf/gpu_report.py times the parts on a GPU)"
        )
    settings = dict(offline_settings(row.server, matrix))
    settings |= {"worker_cls": WORKER, "max_num_seqs": max(batches)}
    report = asyncio.run(_profile(row, matrix, settings, batches))
    text = _as_markdown(report)
    (out / "profile.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "profile.md").write_text(text)
    return text


async def _profile(
    row: Row, matrix: Path, settings: dict[str, Any], batches: list[int]
) -> dict[str, Any]:
    machine = machine_facts()
    items = read_dataset(find_dataset(row.dataset_path, row.locale, matrix), row.layout, row.locale)
    async with EngineTarget(model_of(row.server, matrix), settings) as target:

        async def send(task: SpeechTask, started: float) -> RequestRecord:
            return await time_request(target, task, started)

        engine = target.speech._engine
        dtype = str(engine.model_config.dtype).removeprefix("torch.")

        async def ask(method: str, *arguments: Any) -> Any:
            (answer,) = await engine.collective_rpc(method, args=arguments)
            return answer

        rates = await ask("measured_rates", dtype)
        found = []
        for n_rows in batches:
            tasks = make_tasks(row, items, n_rows * (ROUNDS + 1))
            await closed_loop(send, tasks[:n_rows], n_rows, lambda _: None)
            await ask("take_steps")
            await closed_loop(send, tasks[n_rows:], n_rows, lambda _: None)
            steps = [step for step in await ask("take_steps") if step["n_rows"] == n_rows]
            if not steps:
                raise BenchError(f"--batch {n_rows}: no step decoded so many requests")
            vae = await ask("vae_sizes")
            flops = await ask("vae_flops", n_rows)
            found.append(_summary(steps, n_rows, target, dtype, {**vae, "vae_flops": flops}))
    return {"row": row.name, "machine": machine, "rates": rates, "dtype": dtype, "batches": found}


def _summary(
    steps: list[dict[str, Any]], n_rows: int, target: EngineTarget, dtype: str, vae: dict[str, Any]
) -> dict[str, Any]:
    """Medians over the steps of one batch size, and the costs of its parts."""
    config = target.speech.config

    def median(values: list[float]) -> float:
        return _MS * statistics.median(values)

    parts = {name: median([step["parts"][name] for step in steps]) for name in _PARTS}
    ms = {name: median([s[name] for s in steps]) for name in ("prepare", "forward", "side_path")}
    whole = median([step["whole"] for step in steps])
    timeline = {
        "batch preparation": ms["prepare"],
        "base_lm": parts["base_lm"],
        "residual_lm": parts["residual_lm"],
        "FSQ, fusion": ms["forward"] - parts["base_lm"] - parts["residual_lm"],
        "stop_head": parts["stop_head"],
        "dit": parts["dit"],
        "local_encoder": parts["local_encoder"],
        "vae_decoder": parts["vae_decoder"],
        "projections, guidance, state": ms["side_path"]
        - sum(parts[name] for name in ("dit", "local_encoder", "vae_decoder")),
    }
    timeline["sampling, outputs"] = whole - sum(timeline.values())
    timeline["scheduler, transport"] = median([step["between_steps"] for step in steps])
    context = statistics.mean(step["context"] for step in steps)
    costs = step_costs(
        config,
        n_rows=n_rows,
        context=context,
        dtype_bytes=4 if dtype == "float32" else 2,
        dit_passes=round(statistics.median(step["calls"]["dit"] for step in steps)),
        **vae,
    )
    return {
        "n_rows": n_rows,
        "n_steps": len(steps),
        "context": context,
        "patch_ms": _MS * config.patch_samples_out / config.vae.out_sample_rate_hz,
        "step_ms": whole + timeline["scheduler, transport"],
        "timeline_ms": timeline,
        "costs": {
            name: {"bytes": cost.n_bytes, "flops": cost.n_flops} for name, cost in costs.items()
        },
    }


def _as_markdown(report: dict[str, Any]) -> str:
    machine, rates = report["machine"], report["rates"]
    copy, matmul = rates["copy_gb_s"], rates["matmul_tflop_s"]
    lines = [
        f"# One decode step by part: {report['row']}",
        "",
        f"- {machine['time']}, commit {machine['commit']}, {machine['cpu']}, {machine['cores']}"
        f" cores, load average {machine['load_average'][0]}",
        f"- in the worker, {rates['threads']} threads, {report['dtype']}: copies {copy:.1f} GB/s,"
        f" matrix products {matmul:.3g} TFLOP/s",
        "- bytes: weights once a pass, KV cache and VAE state; FLOPs: matrix products and"
        " attention; floor: the larger of bytes / copy rate and FLOPs / matrix rate",
    ]
    for batch in report["batches"]:
        lines += [
            "",
            f"## {batch['n_rows']} at once: {batch['step_ms']:.1f} ms a step, RTF"
            f" {batch['step_ms'] / batch['patch_ms']:.3f} (median of {batch['n_steps']} steps,"
            f" {batch['context']:.0f} positions of context)",
            "",
            "| part | ms | share | MB | MFLOP | GB/s (of copy) | GFLOP/s (of matmul) | x floor |",
            "|---|---|---|---|---|---|---|---|",
            *(_line(name, ms, batch, copy, matmul) for name, ms in batch["timeline_ms"].items()),
        ]
    return "\n".join(lines) + "\n"


def _line(name: str, ms: float, batch: dict[str, Any], copy: float, matmul: float) -> str:
    head = f"| {name} | {ms:.2f} | {ms / batch['step_ms']:.1%} |"
    cost = batch["costs"].get(name)
    if cost is None or ms <= 0:
        return f"{head} - | - | - | - | - |"
    gb_s, gflop_s = cost["bytes"] / ms / 1e6, cost["flops"] / ms / 1e6
    floor_ms = max(cost["bytes"] / copy / 1e6, cost["flops"] / matmul / 1e9)
    return (
        f"{head} {cost['bytes'] / 1e6:.1f} | {cost['flops'] / 1e6:.0f} |"
        f" {gb_s:.1f} ({gb_s / copy:.0%}) | {gflop_s:.1f} ({gflop_s / matmul / 1000:.0%}) |"
        f" {ms / floor_ms:.1f} |"
    )
