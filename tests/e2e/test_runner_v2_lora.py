"""Adapters through CUDA's runner, against the CPU's: the same samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import TRAINED_TINY
from tests.engines import RecordingEngine
from tests.helpers.runner_v2_calls import with_audio
from tests.perf.full_size import write_random_adapter
from voxnative.config import VoxConfig

pytestmark = pytest.mark.full_model  # two engines

TOLERANCE = 1e-4  # other batch shapes, chunked prefill, a replay
N_ADAPTERS = 3


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, config = tmp_path_factory.mktemp("adapters"), VoxConfig.from_dir(TRAINED_TINY)
    return [
        write_random_adapter(folder / str(i), config, seed=i, rank=2 + 2 * i)
        for i in range(1, N_ADAPTERS + 1)
    ]


@pytest.fixture(scope="module")
def answers(
    adapters: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What happened, and each request's samples."""
    file = tmp_path_factory.mktemp("v2") / "samples.npz"
    environment = os.environ | {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    command = [sys.executable, "-m", "tests.helpers.runner_v2_lora", str(file), *map(str, adapters)]
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("REPORT ")]
    with np.load(file) as samples:
        return json.loads(line.removeprefix("REPORT ")), dict(samples)


@pytest.fixture(scope="module")
def cpu(adapters: list[Path]) -> Iterator[RecordingEngine]:
    engine = RecordingEngine(TRAINED_TINY, max_num_seqs=4, max_model_len=96, loras=_named(adapters))
    yield engine
    engine.api.close()


def _named(adapters: list[Path]) -> dict[str, Path]:
    return {str(i): directory for i, directory in enumerate(adapters, 1)}


def test_each_request_speaks_with_its_adapter(
    answers: tuple[dict[str, Any], dict[str, Any]], cpu: RecordingEngine
) -> None:
    _, samples = answers
    expected = {}
    for request in samples:
        call, _, number = request.partition(" ")
        lora = None if number == "0" else number
        expected[request] = cpu.run(with_audio(call) | {"lora": lora})[0].result.samples
    assert len(samples) == 2 * (N_ADAPTERS + 1) + 1 + 3
    for request, wave in samples.items():
        assert wave.shape == expected[request].shape, request
        difference = np.abs(wave - expected[request]).max()
        assert difference < TOLERANCE, (request, difference)
    for call in ("alone", "other"):
        base = samples[f"{call} 0"]
        for i in range(1, N_ADAPTERS + 1):
            assert np.abs(samples[f"{call} {i}"] - base).max() > 0.01


def test_adapters_came_and_went(answers: tuple[dict[str, Any], dict[str, Any]]) -> None:
    report, _ = answers
    assert report["preempted"] > 0
    assert report["most_at_once"] == 3
    assert report["left"] == []
    assert report["resident"] == [1, 2, 3]
    assert report["resident_after_removal"] == [2, 3]
    assert report["layers_taken"] == [0, 1]  # those that no adapter names; one of two stays
