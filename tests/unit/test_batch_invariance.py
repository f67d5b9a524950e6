"""vLLM's batch-invariant mode: what our part of it refuses and sets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from voxnative.engine import batch_invariance
from voxnative.engine.options import SpeechOptions

# What vLLM sets in a worker, and then what the AudioVAE's decoder does.
READ_BEHIND_VLLM = """
import torch
from voxnative.engine import batch_invariance
torch.backends.cuda.matmul.fp32_precision = "ieee"
torch.backends.cudnn.conv.fp32_precision = "ieee"
torch.backends.cudnn.rnn.fp32_precision = "ieee"
batch_invariance.agree_on_tf32()
settings = torch.backends.cuda.matmul, torch.backends.cudnn
assert [setting.allow_tf32 for setting in settings] == [False, False]
for setting in settings:
    setting.allow_tf32 = True
for setting in settings:
    setting.allow_tf32 = False
assert torch.backends.cudnn.conv.fp32_precision != "tf32"
print("read")
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            SpeechOptions(fp8_dit=True),
            r"\['fp8_dit'\]: True is not valid .* valid: False, or unset",
        ),
        (
            SpeechOptions(compile_solver=True),
            r"\['compile_solver'\]: True is not valid with VLLM_B",
        ),
        (SpeechOptions(kernels=False), r"\['kernels'\]: False is not valid .* valid: True"),
    ],
)
def test_other_ways_of_computing_are_refused(options: SpeechOptions, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batch_invariance.check_options(options)


def test_the_defaults_are_accepted() -> None:
    batch_invariance.check_options(SpeechOptions())
    batch_invariance.check_options(SpeechOptions(kernels=True, compile_solver=False))


def test_asked_for_by_vllms_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert batch_invariance.is_on()
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    assert not batch_invariance.is_on()


def test_the_old_switch_can_be_read_behind_vllms_settings() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ_BEHIND_VLLM], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.endswith("read\n"), done.stderr[-2000:]
