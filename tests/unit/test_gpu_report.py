"""The arithmetic of the GPU report: what is written can be read again."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from tests.perf.gpu_bar import bar_rows, correctness_rows
from tests.perf.gpu_report import Job
from tests.perf.load import Stream, summary
from tests.perf.timeline import timeline


def stream(first_s: float, gap_s: float, n: int) -> Stream:
    """`n` chunks of 0.16 s at 48 kHz, `gap_s` apart."""
    arrivals = [first_s + gap_s * i for i in range(n)]
    return Stream(0.0, arrivals, [7680] * n)


def test_a_run_in_figures() -> None:
    on_time, late = stream(0.02, 0.1, 5), stream(0.04, 0.2, 5)
    figures = json.loads(json.dumps(summary([on_time, late], 48_000)))
    assert figures["chunks"] == 10
    assert figures["patches_a_stream"] == [5]
    assert figures["late_chunks"] == 4  # all of the slow one but its first
    assert figures["worst_lateness_ms"] == pytest.approx(160, abs=0.1)
    assert figures["ttfa_ms"]["p50"] == pytest.approx(30)
    assert figures["total_real_time_factor"] == pytest.approx(1.6 / 0.84, abs=0.1)


def test_a_run_of_failures_says_why() -> None:
    figures = summary([Stream(0.0, error="EngineError: gone")], 48_000)
    assert figures == {"streams": 1, "failed": 1, "errors": ["EngineError: gone"]}


def test_the_bar_beside_the_peer(tmp_path: Path) -> None:
    fast, slow = (
        summary([stream(0.02, 0.01, 64)], 48_000),
        summary([stream(0.04, 0.02, 64)], 48_000),
    )
    found = {"serve": {"together": {"1": fast}}, "peer": {"together": {"1": slow}}}
    rows = {row["row"]: row for row in bar_rows(found)}
    assert rows["RTF, one stream"]["ratio"] == pytest.approx(0.5, abs=0.01)
    assert rows["most streams with every chunk in time"]["ours"] == 1
    assert rows["total at 64 streams"]["ours"] is None
    arguments = Namespace(device="cpu", checkpoint=tmp_path, tiny=False, out=tmp_path)
    Job(arguments).keep("bar", {"rows": list(rows.values()), "count": np.int64(3)})
    assert json.loads((tmp_path / "bar.json").read_text())["count"] == 3


def test_the_verdicts() -> None:
    close = {"cosine_min": 0.99995, "hidden_cosine_min": 0.99, "preemptions": 0}
    tiny = {"behaviour": {"lengths_within_a_patch": True, "left_over": ["a"]}}
    stages = {"kernels": {"vae": {"snr_db": {"fp16": 62.0}}}}
    adapted = {"streams": 32, "rank 8": {"among others": {"cosine_min": 0.998}}}
    equal = {"cosine_min": 1.0, "hidden_cosine_min": 1.0, "preemptions": 3}
    found = {"among": close, "cramped": close, "tiny": tiny, "stages": stages, "lora": adapted}
    found["invariant"] = {"among": equal, "cramped": equal, "lora": {"cosine_min": 1.0}}
    verdicts = {row["row"]: row["ok"] for row in correctness_rows(found)}
    assert verdicts == {
        "patches among others, cosine": True,
        "hidden states among others, cosine": False,
        "patches among others, preempted, cosine": True,
        "hidden states among others, preempted, cosine": False,
        "preemptions among others, preempted": False,
        "patches among others with adapters, rank 8, cosine": False,
        "patches among others, batch-invariant, cosine": True,
        "hidden states among others, batch-invariant, cosine": True,
        "patches among others, preempted, batch-invariant, cosine": True,
        "hidden states among others, preempted, batch-invariant, cosine": True,
        "preemptions among others, preempted, batch-invariant": True,
        "patches among others with adapters, batch-invariant, cosine": True,
        "lengths alone and in a batch within a patch": True,
        "requests left over": False,
        "AudioVAE in fp16, kernels, dB": True,
    }
    assert correctness_rows({}) == []


def test_the_device_timeline() -> None:
    seen = timeline([(0.0, 10.0, "a"), (5.0, 12.0, "b"), (20.0, 30.0, "a")])
    assert seen["kernels"] == 3
    assert seen["busy_share"] == pytest.approx(22 / 30, abs=1e-3)  # overlaps count once
    assert seen["largest"][0] == {"name": "a", "calls": 2, "ms": 0.02}
    assert timeline([]) == {"kernels": 0}
