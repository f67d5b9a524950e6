"""A whole run without an engine: a row of the field, limits, peers, report, exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.bench.answering import PAUSE_S, SAMPLES, answering_server
from voxnative.bench.command import EXIT_MISSED, main

# In the field's own schema; its data set is on the Hub, so that --dataset replaces it.
ROW: dict[str, Any] = {
    "task": "default_voice",
    "eval_phase": "throughput",
    "dataset_name": "seed-tts-text",
    "backend": "openai-audio-speech",
    "endpoint": "/v1/audio/speech",
    "dataset_path": "someone/seed-tts-eval-subset",
    "num_prompts": [2],
    "max_concurrency": [2],
    "num_warmups": 0,
    "seed_tts_locale": "en",
    "extra_body": {"voice": "default"},
    "percentile-metrics": "ttft,e2el,audio_rtf,audio_ttfp,audio_duration",
}
SHIPPED = "voxnative/bench/data/seed_tts_small"


def write_matrix(path: Path, rows: list[dict[str, Any]], **test: Any) -> str:
    server = {"model": "openbmb/VoxCPM2"}
    content = {"test_name": "t", "server_params": server, "benchmark_params": rows, **test}
    path.write_text(json.dumps([content]))
    return str(path)


def test_a_run(repo: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    kept = {"baseline": {"median_audio_rtf": [1e6]}}
    stress = {"eval_phase": "stress", "max_concurrency": None, "request_rate": [20.0]}
    missed = {"baseline": {"audio_throughput": {"20": 1e6}}}
    with answering_server() as url:
        matrix = write_matrix(
            tmp_path / "m.json",
            [ROW | kept, ROW | stress | missed],
            peers=[
                {"kind": "openai", "name": "twin", "url": url, "extra_body": {"seed": None}},
                {"kind": "openai", "name": "gone", "url": "http://127.0.0.1:9"},
                "nano-vllm-voxcpm",
            ],
        )
        command = ["serve", "--matrix", matrix, "--no-quality", "--dataset", str(repo / SHIPPED)]
        code = main([*command, "--base-url", url, "--out", str(tmp_path)])
    assert code == EXIT_MISSED
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(entry["target"], entry["point"]["label"]) for entry in report["entries"]] == [
        *(("voxnative", "c=2"), ("voxnative", "20/s")),
        *(("twin", "c=2"), ("gone", "c=2"), ("twin", "20/s"), ("gone", "20/s")),
    ]
    ours, _, twin, gone, *_ = (entry["result"] for entry in report["entries"])
    assert (ours["completed"], twin["completed"], gone["failed"]) == (2, 2, 2)
    assert ours["total_audio_duration_s"] == pytest.approx(2 * len(SAMPLES) / 16_000)
    assert ours["median_chunk_gap_ms"] > 500 * PAUSE_S  # a late first read shortens it
    assert "nanovllm_voxcpm is not installed" in {n["why"] for n in report["not_run"]}
    assert report["rates"]["copy_gb_s"] > 0
    text = (tmp_path / "report.md").read_text()
    assert "Quality was not measured" in text
    assert "voxnative / twin at c=2: median_audio_ttfp_ms x" in text
    assert "Limits kept: 1 of 2." in text
    assert "failed requests**: t/default_voice/throughput c=2 gone: 2 of 2" in text
    out = capfd.readouterr().out
    assert "MISSED: audio_throughput" in out
    assert str(tmp_path / "report.json") in out
