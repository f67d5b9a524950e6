"""Figures of one request and of a run, from times that are known."""

from __future__ import annotations

import numpy as np
import pytest

from voxnative.bench.definitions import FAMILIES, METRIC_NAMES, as_lines, result_name
from voxnative.bench.metrics import summarise
from voxnative.bench.record import RequestRecord, SpeechTask

RATE_HZ = 100
TASK = SpeechTask(0, "id", "text", 0)


def answered(arrivals_s: list[float], pieces_s: list[float]) -> RequestRecord:
    pieces = [np.zeros(round(s * RATE_HZ), np.float32) for s in pieces_s]
    return RequestRecord(TASK, 0.0, arrivals_s, pieces, arrivals_s[-1], RATE_HZ)


def test_one_request() -> None:
    record = answered([0.5, 0.7, 1.5], [0.4, 0.4, 1.2])
    assert record.audio_s == pytest.approx(2.0)
    assert record.ttfa_s == 0.5
    assert record.rtf == pytest.approx(0.75)
    assert record.gaps_s == pytest.approx([0.2, 0.8])
    assert len(record.samples) == 200


@pytest.mark.parametrize(
    ("arrivals_s", "n_underruns"),
    [
        ([0.5, 0.8, 1.2], 0),  # each before what came before it was played
        ([0.5, 1.0, 1.4], 1),  # the second 0.1 s late; playing goes on with it
        ([0.5, 1.0, 1.5], 2),
        ([9.0, 9.0, 9.0], 0),
    ],
)
def test_underruns(arrivals_s: list[float], n_underruns: int) -> None:
    assert answered(arrivals_s, [0.4, 0.4, 0.4]).n_underruns == n_underruns


def test_a_run() -> None:
    failed = RequestRecord(TASK, 0.0, error="HTTP 429")
    records = [answered([0.1, 0.2], [1.0, 1.0]), answered([0.3, 1.0], [1.0, 3.0]), failed]
    result = summarise(records, wall_s=2.0)
    assert (result["num_prompts"], result["completed"], result["failed"]) == (3, 2, 1)
    assert result["total_audio_duration_s"] == pytest.approx(6.0)
    assert result["audio_throughput"] == pytest.approx(3.0)
    assert result["median_audio_ttfp_ms"] == pytest.approx(200)
    assert result["p99_audio_ttfp_ms"] == pytest.approx(298)
    assert result["mean_audio_rtf"] == pytest.approx((0.1 + 0.25) / 2)
    assert result["mean_chunk_gap_ms"] == pytest.approx((100 + 700) / 2)
    assert result["mean_e2el_ms"] == pytest.approx(600)
    assert result.keys() - {"num_prompts"} <= METRIC_NAMES


def test_a_run_without_answers() -> None:
    result = summarise([RequestRecord(TASK, 0.0, error="gone")], wall_s=1.0)
    assert result["failed"] == 1
    assert "median_audio_rtf" not in result


def test_every_family_is_defined_and_named_as_the_field_names_it() -> None:
    assert result_name("median", "audio_ttfp") == "median_audio_ttfp_ms"
    assert result_name("p99", "audio_rtf") == "p99_audio_rtf"
    text = "\n".join(as_lines())
    assert all(f"`{family}`" in text for family in FAMILIES)
