"""A whole run without an engine: a row of the field, limits, peers, report, exit code."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import voxnative.bench.runner as runner_module
from tests.unit.bench.answering import PAUSE_S, SAMPLES, answering_server
from voxnative.bench.command import EXIT_BAD_INPUT, EXIT_MISSED, main
from voxnative.bench.errors import BenchError
from voxnative.bench.matrix import read_matrix
from voxnative.bench.record import SpeechTask
from voxnative.bench.runner import Runner, RunOptions

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
                {"kind": "nano-vllm-voxcpm", "model": str(repo / "voxnative/checkpoints/tiny")},
            ],
        )
        command = ["serve", "--matrix", matrix, "--no-quality", "--dataset", str(repo / SHIPPED)]
        code = main([*command, "--base-url", url, "--out", str(tmp_path)])
    assert code == EXIT_MISSED
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(entry["target"], entry["point"]["label"]) for entry in report["entries"]] == [
        *(("voxnative", "c=2"), ("voxnative", "20/s")),
        *(("twin", "c=2"), ("twin", "20/s"), ("gone", "c=2"), ("gone", "20/s")),
    ]
    ours, _, twin, _, gone, _ = (entry["result"] for entry in report["entries"])
    assert (ours["completed"], twin["completed"], gone["failed"]) == (2, 2, 2)
    assert ours["total_audio_duration_s"] == pytest.approx(2 * len(SAMPLES) / 16_000)
    assert ours["median_chunk_gap_ms"] > 500 * PAUSE_S  # a late first read shortens it
    assert [n["row"] for n in report["not_run"]] == [
        "t/default_voice/throughput",
        "t/default_voice/stress",
    ]
    assert all("flash-attn is not installed" in n["why"] for n in report["not_run"])
    assert report["rates"]["copy_gb_s"] > 0
    text = (tmp_path / "report.md").read_text()
    assert "Quality was not measured" in text
    assert "voxnative / twin at c=2: median_audio_ttfp_ms x" in text
    assert "Limits kept: 1 of 2." in text
    assert "failed requests**: t/default_voice/throughput c=2 gone: 2 of 2" in text
    out = capfd.readouterr().out
    assert "MISSED: audio_throughput" in out
    assert str(tmp_path / "report.json") in out


class Guest:
    """A peer that answers its first row and breaks down on the second."""

    name, max_streams = "guest", None

    def __init__(self) -> None:
        self.n_starts = self.n_spoken = 0

    async def __aenter__(self) -> Guest:
        self.n_starts += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def speak(self, task: SpeechTask) -> AsyncGenerator[tuple[np.ndarray, int], None]:
        self.n_spoken += 1
        if self.n_spoken > 2:
            raise RuntimeError("out of memory")
        yield np.zeros(1600, np.float32), 16_000

    def facts(self) -> dict[str, Any]:
        return {"n_starts": self.n_starts}


def test_a_peer_starts_once_for_all_rows_and_may_break_down(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest, kept = Guest(), []
    monkeypatch.setattr(runner_module, "open_peer", lambda *_: guest)
    monkeypatch.setattr(runner_module, "why_not", lambda _: None)
    with answering_server() as url:
        matrix = Path(write_matrix(tmp_path / "m.json", [ROW, ROW, ROW], peers=["voxcpm"]))
        options = RunOptions(
            "serve", matrix, "cpu", tmp_path, url, dataset=repo / SHIPPED, quality="none"
        )
        runner = Runner(options, read_matrix(matrix), lambda: kept.append(len(runner.entries)))
        runner.run()
    assert guest.n_starts == 1
    assert [entry["target"] for entry in runner.entries] == ["voxnative"] * 3 + ["guest"]
    told = [(n["row"], n["target"], n["why"]) for n in runner.not_run]
    assert told == [
        (f"t/default_voice/throughput/{i}", "guest", "RuntimeError: out of memory") for i in (2, 3)
    ]
    assert kept == [1, 2, 3, 4, 4, 4, 4]
    guest.n_spoken = 0
    peers_alone = Runner(replace(options, only=("voxcpm",)), read_matrix(matrix)[:1])
    peers_alone.run()
    assert [entry["target"] for entry in peers_alone.entries] == ["guest"]
    with pytest.raises(BenchError, match="--only nobody: valid: voxcpm, voxnative"):
        Runner(replace(options, only=("nobody",)), read_matrix(matrix))


def test_speech_is_kept_and_scored_later(
    repo: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    limits = {"median_audio_rtf": [1e6], "wer_percent": [0], "speaker_similarity": [-1]}
    row = ROW | {"task": "voice_clone", "dataset_name": "seed-tts", "baseline": limits}
    command = ["--dataset", str(repo / SHIPPED), "--out", str(tmp_path), "--score-later"]
    with answering_server() as url:
        matrix = write_matrix(tmp_path / "m.json", [row])
        code = main(["serve", "--matrix", matrix, "--base-url", url, *command])
    assert code == 0
    assert "Limits kept: 1 of 1. 2 more wait" in (tmp_path / "report.md").read_text()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("report.json", "audio"):
        (tmp_path / name).rename(elsewhere / name)
    (entry,) = json.loads((elsewhere / "report.json").read_text())["entries"]
    files = [answer["file"] for answer in entry["audio"]["answers"]]
    samples, rate_hz = soundfile.read(elsewhere / files[0], dtype="int16")
    assert rate_hz == 16_000
    np.testing.assert_array_equal(samples, SAMPLES)
    assert main(["score", str(elsewhere)]) == EXIT_MISSED
    assert "MISSED: wer_percent" in capfd.readouterr().out
    (scored,) = json.loads((elsewhere / "report.json").read_text())["entries"]
    assert scored["quality"]["n_scored"] == 2
    assert scored["quality"]["wer_percent"]["value"] > 0
    assert [v["metric"] for v in scored["verdicts"]] == list(limits)
    text = (elsewhere / "report.md").read_text()
    assert "Limits kept: 2 of 3." in text
    assert "quality scored afterwards" in text
    assert main(["score", str(elsewhere)]) == EXIT_BAD_INPUT
    assert "nothing in" in capfd.readouterr().err


def test_a_run_that_is_ended_leaves_its_report(repo: Path, tmp_path: Path) -> None:
    slow = ROW | {"num_prompts": 500, "max_concurrency": 1}
    as_json = tmp_path / "report.json"

    def end_it_after_the_first_row() -> None:
        while not as_json.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    with answering_server() as url:
        matrix = write_matrix(tmp_path / "m.json", [ROW, slow])
        command = ["serve", "--matrix", matrix, "--base-url", url, "--no-quality"]
        command += ["--dataset", str(repo / SHIPPED), "--out", str(tmp_path)]
        threading.Thread(target=end_it_after_the_first_row, daemon=True).start()
        with pytest.raises(SystemExit) as ended:
            main(command)
    assert ended.value.code == 128 + signal.SIGTERM
    (entry,) = json.loads(as_json.read_text())["entries"]
    assert entry["result"]["completed"] == 2
    assert "## t/default_voice/throughput" in (tmp_path / "report.md").read_text()
