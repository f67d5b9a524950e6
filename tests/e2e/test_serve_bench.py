"""``voxnative bench`` on real engines: a server, this process, the reference, and a profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.runtime import Server
from voxnative.bench.command import main

pytestmark = [pytest.mark.tts, pytest.mark.hardware_test(res="cpu", num_cards=0)]

MATRIX = "tests/dfx/perf/tests/test_voxcpm2.json"
SMALL = "voxnative/bench/data/seed_tts_small"
ROW: dict[str, Any] = {
    "task": "voice_clone",
    "eval_phase": "latency",
    "dataset_name": "seed-tts",
    "dataset_path": SMALL,
    "num_prompts": 2,
    "max_concurrency": 1,
    "num_warmups": 0,
    "extra_body": {"max_new_tokens": 60},
}


def read(out: Path) -> dict[str, Any]:
    return json.loads((out / "report.json").read_text())


@pytest.mark.core_model
@pytest.mark.advanced_model
def test_the_smoke_row_with_quality(speech_server: Server, repo: Path, tmp_path: Path) -> None:
    arguments = ["serve", "--matrix", str(repo / MATRIX), "--row", "test_voxcpm2_smoke"]
    code = main([*arguments, "--base-url", speech_server.address, "--out", str(tmp_path)])
    assert code == 0
    report = read(tmp_path)
    (entry,) = report["entries"]
    result, quality = entry["result"], entry["quality"]
    assert (result["completed"], result["failed"]) == (3, 0)
    assert 0 < result["median_audio_ttfp_ms"] <= result["median_e2el_ms"]
    assert result["total_audio_duration_s"] > 1
    assert quality["n_scored"] == 3
    assert quality["wer_percent"]["low"] <= quality["wer_percent"]["value"]
    assert 1 <= quality["dnsmos_ovrl"]["value"] <= 5
    assert 0 < quality["speaker_similarity"]["value"] < 1
    assert report["rates"]["copy_gb_s"] > 0
    assert {path.name for path in tmp_path.iterdir()} >= {"report.md", "latency.png", "rtf.png"}


@pytest.mark.full_model
def test_it_starts_the_server_itself(repo: Path, tmp_path: Path) -> None:
    arguments = ["serve", "--matrix", str(repo / MATRIX), "--row", "test_voxcpm2_smoke"]
    assert main([*arguments, "--no-quality", "--out", str(tmp_path)]) == 0
    (entry,) = read(tmp_path)["entries"]
    assert entry["result"]["start_s"] > 1
    assert entry["result"]["rss_peak_mb"] > 300


@pytest.mark.full_model
def test_offline_and_the_reference(repo: Path, tmp_path: Path) -> None:
    matrix = tmp_path / "m.json"
    server = {"deploy": str(repo / "deploy/cpu.yaml")}
    test = {"test_name": "t", "server_params": server, "peers": ["voxcpm"]}
    matrix.write_text(json.dumps([test | {"benchmark_params": [ROW]}]))
    assert main(["offline", "--matrix", str(matrix), "--no-quality", "--out", str(tmp_path)]) == 0
    ours, reference = read(tmp_path)["entries"]
    assert reference["target"] == "voxcpm"
    # The same noise, the same prompt: equal lengths, whoever speaks.
    assert ours["requests"]["audio_duration_s"] == reference["requests"]["audio_duration_s"]


@pytest.mark.full_model
def test_profile(repo: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    command = ["profile", "--matrix", str(repo / MATRIX), "--row", "test_voxcpm2_smoke"]
    assert main([*command, "--batch", "1", "3", "--out", str(tmp_path)]) == 0
    assert "| dit |" in capfd.readouterr().out
    profile = json.loads((tmp_path / "profile.json").read_text())
    for batch, n_rows in zip(profile["batches"], (1, 3), strict=True):
        assert batch["n_rows"] == n_rows
        assert sum(batch["timeline_ms"].values()) == pytest.approx(batch["step_ms"], rel=0.01)
        assert all(ms > -0.05 * batch["step_ms"] for ms in batch["timeline_ms"].values())
        assert min(cost["flops"] for cost in batch["costs"].values()) > 0
