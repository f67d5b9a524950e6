"""CUDA's runner under vLLM's asynchronous scheduler, against the CPU's: the same samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tests.engines import RecordingEngine
from tests.helpers.runner_v2_calls import CALLS, with_audio

pytestmark = pytest.mark.full_model

TOLERANCE = 1e-4  # other batch shapes, chunked prefill, a replay
SAME = {  # request there -> call
    "alone": "alone", "together": "alone", "stays": "alone", "other": "other",
    "five steps": "five steps", "voice": "voice", "voice again": "voice",
    "continued": "continued", "long 0": "long", "long 1": "long", "long 2": "long",
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What happened, and each request's samples."""
    file = tmp_path_factory.mktemp("v2") / "samples.npz"
    environment = os.environ | {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    command = [sys.executable, "-m", "tests.helpers.runner_v2", str(file)]
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("REPORT ")]
    with np.load(file) as samples:
        return json.loads(line.removeprefix("REPORT ")), dict(samples)


def test_requests_of_all_kinds_are_the_same(
    answers: tuple[dict[str, Any], dict[str, Any]], speaking: RecordingEngine
) -> None:
    _, samples = answers
    names = list(CALLS)
    expected = {name: speaking.run(with_audio(name))[0].result.samples for name in names}
    for request, name in SAME.items():
        assert samples[request].shape == expected[name].shape, request
        difference = np.abs(samples[request] - expected[name]).max()
        assert difference < TOLERANCE, (request, difference)
        assert np.abs(expected[name]).max() > 0.01, name


def test_they_were_prefilled_in_pieces_cached_and_preempted(
    answers: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    report, _ = answers
    assert report["cached"][-2] >= 32, "the voice's KV block was not found again"
    assert report["preempted"] > 0
    assert report["most_at_once"] == 3


def test_ends_leave_nothing(answers: tuple[dict[str, Any], dict[str, Any]]) -> None:
    report, samples = answers
    assert report["left_by_warm_up"] == report["left"] == []
    assert report["replays_left"] == 0
    assert set(report["ends"].values()) <= {"length", "abort"}
    assert 0 < report["patches"]["gone"] < CALLS["long"]["max_steps"]
    for request, name in SAME.items():
        assert report["patches"][request] == CALLS[name]["max_steps"]
    assert set(samples) == {*SAME, "gone"}
