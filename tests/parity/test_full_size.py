"""Networks and loop at the published sizes, random weights in fp32, in each mode.

The reference and ours share one set of tensors, one after the other in this process: VoxCPM2 takes
12 GB of memory and some minutes of one core. Through the engine, which would hold a second set in
a process of its own, the modes are proven at small sizes (tests/e2e/test_parity.py).
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import random_reference
from tests.helpers.plain_speech import PlainSpeech
from tests.parity.compare import assert_parity
from tests.parity.test_plain_loop import recording
from tests.reference import run_reference
from tests.unit.test_config import PUBLISHED as VOXCPM2
from tests.unit.test_config_voxcpm import VOXCPM_05B, VOXCPM_15
from voxnative.checkpoint import fold_weight_norm
from voxnative.config import VoxConfig
from voxnative.family import Mode
from voxnative.tokenizer import TextTokenizer

pytestmark = [pytest.mark.full_model, pytest.mark.timeout(1200)]

TEXT, PROMPT_TEXT = "good morning.", "hello, "
SETTINGS: dict[str, Any] = {"n_steps": 4, "seed": 2, "cfg": 2.0, "timesteps": 3}
PUBLISHED = {"VoxCPM2": VOXCPM2, "VoxCPM1.5": VOXCPM_15, "VoxCPM-0.5B": VOXCPM_05B}


def arguments(mode: Mode, rate_hz: int) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if mode.startswith("reference"):
        given["reference"] = recording(rate_hz, 0.45, 110)
    if mode.endswith("continuation"):
        given |= {"prompt": recording(rate_hz, 0.5, 150), "prompt_text": PROMPT_TEXT}
    return given


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_mode_equals_the_reference(name: str, tiny_dir: Path) -> None:
    content = PUBLISHED[name] | {"dtype": "float32", "device": "cpu", "max_length": 128}
    config = VoxConfig.from_dict(content)
    model = random_reference(tiny_dir, content, seed=1).eval()
    requests = {mode: arguments(mode, config.vae.sample_rate_hz) for mode in config.family.modes}
    theirs = {
        mode: run_reference(model, TEXT, **SETTINGS, **given) for mode, given in requests.items()
    }

    tensors = fold_weight_norm(model.state_dict(), tiny_dir)
    del model
    n_parameters = sum(tensor.numel() for tensor in tensors.values())
    ours = PlainSpeech.from_tensors(config, TextTokenizer.from_dir(tiny_dir), tensors)
    for mode, given in requests.items():
        made = ours.generate(TEXT, **SETTINGS, **given)
        what = f"{name}, {n_parameters / 1e9:.2f} B parameters, {mode}"
        assert_parity(f"{what}, latents", made.latents, theirs[mode].latents, max_abs=1e-4)
        assert_parity(f"{what}, audio", made.audio, theirs[mode].audio, max_abs=1e-4)
        assert made.stop_flags.tolist() == theirs[mode].stop_flags.tolist()
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(f"{name}: peak resident memory {peak_gb:.1f} GB")
