"""Limits: which one belongs to a step, and whether a figure keeps it."""

from __future__ import annotations

from typing import Any

import pytest

from voxnative.bench.baseline import Baseline, judge, runs_on
from voxnative.bench.errors import BenchError


@pytest.mark.parametrize(
    ("limits", "result", "ok"),
    [
        ({"median_audio_rtf": 0.5}, {"median_audio_rtf": 0.5}, True),
        ({"median_audio_rtf": 0.5}, {"median_audio_rtf": 0.51}, False),
        ({"audio_throughput": 10}, {"audio_throughput": 10.0}, True),
        ({"audio_throughput": 10}, {"audio_throughput": 9.9}, False),
        ({"speaker_similarity": 0.7}, {"speaker_similarity": 0.6}, False),
        ({"wer_percent": 5}, {"wer_percent": 4}, True),
        ({"wer_percent": 5}, {}, False),
        ({"p99_chunk_gap_ms": 5}, {"p99_chunk_gap_ms": float("nan")}, False),
    ],
)
def test_verdicts(limits: dict[str, float], result: dict[str, Any], ok: bool) -> None:
    (verdict,) = judge(limits, result)
    assert verdict.ok is ok
    assert verdict.metric in str(verdict)


def test_limits_by_load() -> None:
    baseline = Baseline.read({"audio_throughput": {"8": 10, "64": 30.5}}, "row")
    assert baseline.limits("cpu", 0, 64.0) == {"audio_throughput": 30.5}
    with pytest.raises(BenchError, match="no limit for load 16; it has 8, 64"):
        baseline.limits("cpu", 0, 16.0)


def test_a_list_that_is_too_short() -> None:
    baseline = Baseline.read({"median_audio_rtf": [0.5]}, "row")
    assert baseline.limits("anything", 0, 1) == {"median_audio_rtf": 0.5}
    with pytest.raises(BenchError, match="none for step 1"):
        baseline.limits("anything", 1, 2)


@pytest.mark.parametrize(
    ("name", "machine", "is_it"),
    [
        ("H200", "NVIDIA H200", True),
        ("h100", "NVIDIA H100 80GB HBM3", True),
        ("H100", "NVIDIA H1000", False),
        ("4090", "NVIDIA GeForce RTX 4090", True),
        ("A100", "NVIDIA A100-SXM4-80GB", True),
        ("cpu", "cpu", True),
        ("cpu", "NVIDIA H200", False),
    ],
)
def test_names_of_machines(name: str, machine: str, is_it: bool) -> None:
    assert runs_on(name, machine) is is_it
