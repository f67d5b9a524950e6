"""What the CPU engine costs with the shipped checkpoint; prints JSON, asserts no times."""

from __future__ import annotations

import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines import RecordingEngine

TEXT = "the morning train was late again, so we walked along the river into town."
N_REPEATS = 3


def median_ms(seconds: list[float]) -> float:
    return round(1000 * statistics.median(seconds), 2)


def measure(engine: RecordingEngine, n_streams: int) -> dict[str, Any]:
    """RTF and first audio of equal requests at once, and the milliseconds of a step by part."""
    calls = [{"text": TEXT, "seed": seed, "max_steps": 40} for seed in range(n_streams)]
    engine.run(*calls)
    engine.rpc("step_times")
    runs = [run.result for _ in range(N_REPEATS) for run in engine.run(*calls)]
    times = engine.rpc("step_times")
    step_ms = {name: median_ms(seconds) for name, seconds in times.items()}
    bare = engine.rpc("part_times", n_streams, 20, 10)
    parts_ms = {name: median_ms(seconds) for name, seconds in bare.items()}
    # Wall time of a step as a reader sees it, against the same modules in a bare loop (the
    # language models, which need vLLM's attention metadata, as they ran inside the step).
    decode_s = [(run.wall_s - run.ttfa_s) / (run.n_patches - 1) for run in runs]
    modules_ms = step_ms["lm_forward"] + sum(parts_ms.values())
    wall_ms = median_ms(decode_s)
    return {
        "streams": n_streams,
        "rtf": round(statistics.median(run.rtf for run in runs), 3),
        "ttfa_ms": median_ms([run.ttfa_s for run in runs]),
        "step_wall_ms": wall_ms,
        "modules_ms": round(modules_ms, 2),
        "overhead": round(wall_ms / modules_ms - 1, 3),
        "step_ms": step_ms,
        "bare_loop_ms": parts_ms,
        "audio_s": round(sum(run.duration_s for run in runs), 2),
    }


@pytest.mark.parametrize(
    "streams", [(1,), pytest.param((1, 4), marks=pytest.mark.full_model)], ids=["one", "four"]
)
def test_speed(streams: tuple[int, ...], speaking: RecordingEngine, repo: Path) -> None:
    report = {
        "machine": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "timesteps": 10,
        "runs": [measure(speaking, n) for n in streams],
    }
    text = json.dumps(report, indent=1)
    print(text)
    folder = repo / "out" / "perf"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu_speed.json").write_text(text)
    assert all(run["audio_s"] > 0 for run in report["runs"])
