"""The report: it says what was measured, what was missed, and what was not run."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from voxnative.bench.errors import BenchError
from voxnative.bench.machine import machine_facts
from voxnative.bench.metrics import summarise
from voxnative.bench.record import RequestRecord, SpeechTask
from voxnative.bench.report import append_to, make_report, write_report
from voxnative.bench.run_point import is_good

RATES = {"copy_gb_s": 10.0, "matmul_tflop_s": 0.05, "device": "cpu", "dtype": "float32"}


def entry(target: str, streams: int, ttfa_s: float, **changes: Any) -> dict[str, Any]:
    """As `run_point` makes it, from records with known times."""
    pieces = [np.zeros(160, np.float32)] * 2
    records = [
        RequestRecord(SpeechTask(i, str(i), "t", i), 0.0, [ttfa_s, 1.0], pieces, 1.0, 160)
        for i in range(3)
    ]
    estimate = {"value": 12.3456, "low": 4.0, "high": 20.0, "n": 3}
    return {
        "row": "test/default_voice/latency",
        "task": "default_voice",
        "eval_phase": "latency",
        "target": target,
        "point": {"max_concurrency": streams, "request_rate": None, "label": f"c={streams}"},
        "load_average": 1.25,
        "result": summarise(records, 2.0),
        "quality": {"wer_percent": estimate},
        "requests": {"audio_rtf": [r.rtf for r in records]},
        "errors": [],
        **changes,
    }


@pytest.fixture
def report() -> dict[str, Any]:
    missed = {"metric": "m", "ok": False, "text": "median_audio_rtf 0.5, limit <= 0.1"}
    made = make_report("serve", Path("m.json"), machine_facts(), True)
    made["rates"] = RATES
    made["entries"] = [
        entry("voxnative", 1, 0.2, verdicts=[missed]),
        entry("voxnative", 8, 0.8, verdicts=[{"metric": "m", "ok": True, "text": "kept"}]),
        entry("voxcpm", 1, 0.4),
    ]
    made["not_run"] = [{"row": "test/x", "target": "nano", "why": "nanovllm is not installed"}]
    made["targets"] = {"voxnative": {"url": "http://x"}}
    return made


def test_files(report: dict[str, Any], tmp_path: Path) -> None:
    files = write_report(report, tmp_path)
    names = [path.name for path in files]
    assert names == ["report.json", "report.md", "latency.png", "throughput.png", "rtf.png"]
    assert json.loads(files[0].read_text()) == report
    for path in files[2:]:
        with Image.open(path) as image:
            assert image.width > 500
            assert len(image.convert("L").getcolors()) > 10  # not an empty sheet


def test_the_text(report: dict[str, Any], tmp_path: Path) -> None:
    write_report(report, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "Limits kept: 1 of 2." in text
    assert "**missed**: test/default_voice/latency c=1: median_audio_rtf 0.5" in text
    assert "| voxnative | c=1 | 3 | 1.2 | 200 | 200 | 200 | 0.500 |" in text
    assert "12.3 [4.0, 20.0]" in text
    assert "voxnative / voxcpm at c=1: median_audio_ttfp_ms x0.50" in text
    assert "nano on test/x: nanovllm is not installed" in text
    assert "`audio_ttfp` [ms]: TTFA: from the request sent" in text
    assert "Quality was not measured" not in text


def test_without_quality_it_says_so(report: dict[str, Any], tmp_path: Path) -> None:
    bare = [item | {"quality": None} for item in report["entries"]]
    write_report(report | {"with_quality": False, "entries": bare}, tmp_path)
    assert "**Quality was not measured (`--no-quality`)" in (tmp_path / "report.md").read_text()


def test_a_report_grows(report: dict[str, Any], tmp_path: Path) -> None:
    write_report(report, tmp_path)
    more = copy.deepcopy(report)
    more["entries"] = [entry("voxnative", 8, 0.3), entry("voxnative", 16, 0.9)]
    grown = append_to(more, tmp_path)
    keys = [(e["target"], e["point"]["label"]) for e in grown["entries"]]
    assert keys == [
        ("voxnative", "c=1"),
        ("voxcpm", "c=1"),
        ("voxnative", "c=8"),
        ("voxnative", "c=16"),
    ]
    assert grown["entries"][2]["result"]["median_audio_ttfp_ms"] == pytest.approx(300)
    assert len(grown["not_run"]) == 1


@pytest.mark.parametrize("key", ["cpu", "commit"])
def test_another_machine_or_commit_is_another_report(
    report: dict[str, Any], tmp_path: Path, key: str
) -> None:
    write_report(report, tmp_path)
    report["machine"] = report["machine"] | {key: "another"}
    with pytest.raises(BenchError, match=f"differs in {key}"):
        append_to(report, tmp_path)
    with pytest.raises(BenchError, match="no report"):
        append_to(report, tmp_path / "nowhere")


def test_what_is_good() -> None:
    good = entry("voxnative", 1, 0.2)
    assert is_good(good)
    assert not is_good(good | {"verdicts": [{"ok": True}, {"ok": False}]})
    assert not is_good(good | {"result": good["result"] | {"failed": 1}})
