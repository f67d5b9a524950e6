"""Throughput with adapters against none, in one engine; prints JSON, asserts no times."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.adapters import write_adapter
from tests.checkpoints import TRAINED_TINY
from tests.engines import RecordingEngine
from tests.perf.test_cpu_speed import median_ms

TEXT = "the morning train was late again, so we walked along the river into town."
N_STREAMS = 32
N_STEPS = 8
N_ROUNDS = 3
N_ADAPTERS = (0, 1, 8, 32)
RECIPE = {"r": 8, "alpha": 16, "enable_lm": True, "enable_dit": True}


def one_round(engine: RecordingEngine, n_adapters: int) -> dict[str, float]:
    """32 equal streams, which take the adapters in turn."""
    names = [f"adapter {i % n_adapters}" if n_adapters else None for i in range(N_STREAMS)]
    calls = [
        {"text": TEXT, "seed": i, "max_steps": N_STEPS, "min_steps": N_STEPS, "lora": name}
        for i, name in enumerate(names)
    ]
    engine.rpc("step_times")
    started = time.perf_counter()
    runs = engine.run(*calls)
    wall_s = time.perf_counter() - started
    # The first steps prefill; the last ones decode all streams at once.
    times = {name: seconds[-(N_STEPS - 2) :] for name, seconds in engine.rpc("step_times").items()}
    return {
        "times_real_time": sum(run.result.duration_s for run in runs) / wall_s,
        **{f"{name}_ms": median_ms(seconds) for name, seconds in times.items()},
    }


@pytest.mark.full_model
def test_lora_speed(tmp_path: Path, repo: Path) -> None:
    engine = RecordingEngine(
        TRAINED_TINY,
        max_num_seqs=N_STREAMS,
        max_model_len=128,
        enable_lora=True,
        max_loras=max(N_ADAPTERS),
        max_lora_rank=8,
    )
    rounds: dict[int, list[dict[str, float]]] = {n: [] for n in N_ADAPTERS}
    try:
        for i in range(max(N_ADAPTERS)):
            directory = write_adapter(tmp_path / str(i), TRAINED_TINY, seed=i, **RECIPE)
            engine.api.load_lora(f"adapter {i}", directory)
        one_round(engine, 0)
        for _ in range(N_ROUNDS):  # in turn, so that a busy machine meets all of them
            for n in N_ADAPTERS:
                rounds[n].append(one_round(engine, n))
    finally:
        engine.api.close()
    best: dict[int, dict[str, Any]] = {
        n: max(measured, key=lambda one: one["times_real_time"]) for n, measured in rounds.items()
    }
    report = {
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "streams": N_STREAMS,
        "steps": N_STEPS,
        "rounds": N_ROUNDS,
        "best_round": best,
        "relative_throughput": {
            n: round(best[n]["times_real_time"] / best[0]["times_real_time"], 3) for n in N_ADAPTERS
        },
        "all_times_real_time": {
            n: [round(one["times_real_time"], 3) for one in rounds[n]] for n in N_ADAPTERS
        },
    }
    text = json.dumps(report, indent=1)
    print(text)
    folder = repo / "out" / "perf"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lora_speed.json").write_text(text)
    assert all(len(measured) == N_ROUNDS for measured in rounds.values())
