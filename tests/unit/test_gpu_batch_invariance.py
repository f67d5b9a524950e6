"""Batch-invariant kernels on a CUDA device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full_model, pytest.mark.hardware_test(res="cuda", num_cards=1)]

REPO = Path(__file__).parents[2]


def test_rows_are_equal_bit_for_bit_in_any_batch() -> None:
    checks = "tests/unit/invariant_side_path.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", checks],
        env=os.environ | {"VLLM_BATCH_INVARIANT": "1"},
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "3 passed" in done.stdout
