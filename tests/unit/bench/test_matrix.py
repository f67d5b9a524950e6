"""The matrix: the field's rows as they are, ours beside them, and nothing that is unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from voxnative.async_api import SHIPPED_CHECKPOINT
from voxnative.bench.errors import BenchError
from voxnative.bench.matrix import LoadPoint, Row, choose_rows, read_matrix
from voxnative.bench.peers.library import open_peer

# Keys and shapes of a row as vLLM-style nightly matrices have them.
FIELD_ROW: dict[str, Any] = {
    "task": "voice_clone",
    "eval_phase": "throughput",
    "dataset_name": "seed-tts",
    "backend": "openai-audio-speech",
    "endpoint": "/v1/audio/speech",
    "dataset_path": "someone/seed-tts-eval-subset",
    "num_prompts": [80, 128],
    "max_concurrency": [8, 16],
    "seed_tts_locale": "en",
    "percentile-metrics": "ttft,e2el,audio_rtf,audio_ttfp,audio_duration",
    "baseline": {
        "H100": {"median_audio_ttfp_ms": [200, 600], "audio_throughput": [24, 40]},
        "A3": {"median_audio_rtf": [0.6, 0.8]},
    },
}
FIELD_TEST: dict[str, Any] = {
    "test_name": "test_voxcpm2",
    "mark": [{"hardware_marks": {"res": {"cuda": "H100"}, "num_cards": 2}}, "full_model", "tts"],
    "server_params": {
        "model": "openbmb/VoxCPM2",
        "stage_overrides": {"1": {"devices": "1"}},
        "extra_cli_args": ["--trust-remote-code"],
    },
    "benchmark_params": [FIELD_ROW],
}


def written(tmp_path: Path, *tests: dict[str, Any]) -> Path:
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps(list(tests)))
    return path


def read_one(tmp_path: Path, row: dict[str, Any], **test: Any) -> Row:
    (found,) = read_matrix(written(tmp_path, {**FIELD_TEST, "benchmark_params": [row], **test}))
    return found


def test_a_row_of_the_field(tmp_path: Path) -> None:
    row = read_one(tmp_path, FIELD_ROW)
    assert row.name == "test_voxcpm2/voice_clone/throughput"
    assert row.server.model == "openbmb/VoxCPM2"
    assert row.server.flags == ("--trust-remote-code",)
    assert row.server.foreign == ("stage_overrides",)
    assert row.points == (
        LoadPoint(0, 80, 8, max_concurrency=8),
        LoadPoint(1, 128, 16, max_concurrency=16),
    )
    assert row.percentile_metrics[0] == "ttft"
    assert (row.enabled, row.measure_quality, row.burstiness, row.seed) == (True, False, 1.0, 0)
    assert row.baseline.limits("NVIDIA H100 80GB HBM3", 1, 16) == {
        "median_audio_ttfp_ms": 600,
        "audio_throughput": 40,
    }
    assert row.baseline.limits("cpu", 0, 8) == {}


def test_ours_adds_hardware_and_peers(tmp_path: Path) -> None:
    peers = ["voxcpm", {"kind": "openai", "name": "other", "url": "http://h:1", "model": "m"}]
    row = read_one(tmp_path, FIELD_ROW, hardware=["H200", "cpu"], peers=peers)
    assert row.hardware == ("H200", "cpu")
    assert [(peer.name, peer.kind) for peer in row.peers] == [
        ("voxcpm", "voxcpm"),
        ("other", "openai"),
    ]


@pytest.mark.parametrize("kind", ["voxcpm", "nano-vllm-voxcpm"])
def test_a_stand_in_is_looked_for_around_the_matrix(tmp_path: Path, kind: str) -> None:
    row = read_one(tmp_path, FIELD_ROW, peers=[{"kind": kind, "stand_ins": {"librosa": "here"}}])
    (peer,) = row.peers
    matrix, model = tmp_path / "matrix.json", str(SHIPPED_CHECKPOINT)
    with pytest.raises(BenchError, match="stand_ins: no folder here"):
        open_peer(peer, row, model, matrix)
    (tmp_path / "here").mkdir()
    assert open_peer(peer, row, model, matrix).name == kind


def test_serve_args_become_flags(tmp_path: Path) -> None:
    params = {"serve_args": {"max_num_seqs": 4, "enforce-eager": True, "x": False, "y": {"a": 1}}}
    row = read_one(tmp_path, FIELD_ROW, server_params=params)
    assert row.server.flags == ("--max-num-seqs", "4", "--enforce-eager", "--y", '{"a": 1}')
    assert row.server.model is None


@pytest.mark.parametrize(
    ("changes", "loads"),
    [
        ({"num_prompts": 5}, [(8, 5), (16, 5)]),
        ({"num_prompts": [5, 6], "max_concurrency": 3}, [(3, 5), (3, 6)]),
        ({"num_prompts": 9, "max_concurrency": None, "request_rate": [0.5, 2]}, [(0.5, 9), (2, 9)]),
        ({"num_prompts": 9, "max_concurrency": 1, "request_rate": 0.5}, [(0.5, 9), (1, 9)]),
    ],
)
def test_sweeps(tmp_path: Path, changes: dict[str, Any], loads: list[tuple[float, int]]) -> None:
    row = read_one(tmp_path, {**FIELD_ROW, **changes, "baseline": {}})
    assert [(point.load, point.num_prompts) for point in row.points] == loads


def test_warm_ups(tmp_path: Path) -> None:
    assert [point.num_warmups for point in read_one(tmp_path, FIELD_ROW).points] == [8, 16]
    row = read_one(tmp_path, {**FIELD_ROW, "num_warmups": 0})
    assert [point.num_warmups for point in row.points] == [0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tsk": 1}, "unknown key tsk; valid: .*task"),
        ({"task": "sing"}, "task: 'sing' is not valid; valid: voice_clone, default_voice"),
        ({"eval_phase": None}, "eval_phase"),
        ({"backend": "openai-chat-omni"}, "backend"),
        ({"dataset_name": "random"}, "valid: seed-tts, seed-tts-text, seed-tts-design"),
        ({"seed_tts_locale": "fr"}, "valid: en, zh"),
        ({"num_prompts": 0}, "num_prompts"),
        ({"num_prompts": [1, 2, 3]}, "one number, or as many as max_concurrency"),
        ({"num_prompts": True}, "num_prompts"),
        ({"max_concurrency": [1.5]}, "whole numbers"),
        ({"max_concurrency": None}, "this or request_rate"),
        ({"burstiness": 0}, "burstiness"),
        ({"extra_body": []}, "extra_body.*an object"),
        ({"enabled": 1}, "true or false"),
        ({"baseline": {"mean_speed": 3}}, "unknown metric mean_speed; valid: .*audio_throughput"),
        ({"baseline": {"H100": {"mean_speed": 3}}}, "unknown metric mean_speed"),
        ({"baseline": {"median_audio_rtf": "low"}}, "median_audio_rtf: 'low' is not valid"),
        ({"percentile_metrics": "ttft"}, "with '-' and with '_'"),
    ],
)
def test_bad_rows(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        read_one(tmp_path, {**FIELD_ROW, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_name": ""}, "test_name"),
        ({"hardwre": "cpu"}, "unknown key hardwre"),
        ({"hardware": 7}, "hardware"),
        ({"server_params": {"modle": "x"}}, "server_params: unknown key modle"),
        ({"server_params": {"extra_cli_args": [1]}}, "extra_cli_args"),
        ({"peers": ["sglang"]}, "kind: 'sglang' is not valid; valid: voxcpm"),
        ({"peers": [{"kind": "openai"}]}, "url belongs to kind openai"),
        ({"peers": [{"kind": "voxcpm", "ulr": "x"}]}, "unknown key ulr"),
        (
            {"peers": [{"kind": "openai", "url": "http://h", "stand_ins": {"a": "b"}}]},
            "stand_ins belongs to the kinds voxcpm, nano-vllm-voxcpm",
        ),
        ({"benchmark_params": {}}, "a list"),
    ],
)
def test_bad_tests(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        read_matrix(written(tmp_path, {**FIELD_TEST, **changes}))


@pytest.mark.parametrize(
    ("text", "message"), [("{", "no JSON"), ("[]", "not empty"), ("{}", "list")]
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "matrix.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=message):
        read_matrix(path)
    with pytest.raises(BenchError, match="No such file"):
        read_matrix(tmp_path / "other.json")


def test_rows_are_chosen_by_name_pattern_or_test(tmp_path: Path) -> None:
    off = {**FIELD_ROW, "eval_phase": "latency", "enabled": False}
    rows = read_matrix(
        written(tmp_path, {**FIELD_TEST, "benchmark_params": [FIELD_ROW, FIELD_ROW, off]})
    )
    names = [row.name for row in rows]
    assert names == [
        "test_voxcpm2/voice_clone/throughput",
        "test_voxcpm2/voice_clone/throughput/2",
        "test_voxcpm2/voice_clone/latency",
    ]
    assert [row.name for row in choose_rows(rows, [])] == names[:2]
    assert [row.name for row in choose_rows(rows, ["*/latency"])] == names[2:]
    assert [row.name for row in choose_rows(rows, ["test_voxcpm2", names[0]])] == names
    with pytest.raises(BenchError, match="no such row; valid: test_voxcpm2/voice_clone/throughput"):
        choose_rows(rows, ["fast"])


def test_the_repositorys_own_matrix(repo: Path) -> None:
    rows = read_matrix(repo / "tests/dfx/perf/tests/test_voxcpm2.json")
    for row in rows:
        for point in row.points:
            row.baseline.limits("NVIDIA H200", point.step, point.load)
            row.baseline.limits("cpu", point.step, point.load)
    assert {row.eval_phase for row in rows} == {"latency", "throughput", "stress", "quality"}
    assert {name for row in rows for name in row.hardware} == {"cpu", "H200"}
