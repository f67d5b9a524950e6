"""Checkpoints on which our networks meet the reference's: random ones and the trained one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import TRAINED_TINY, load_speech_nets, write_checkpoint
from tests.reference import load_reference, one_thread
from voxnative.config import VoxConfig
from voxnative.nn.speech_nets import SpeechNets

VARIANTS: dict[str, dict[str, Any]] = {
    "depthwise": {"seed": 1},
    "dense-mup": {"seed": 2, "depthwise": False, "use_mup": True},
    "stretched-rope": {
        "seed": 3,
        "no_rope": False,
        "lm_config": {"rope_scaling": {"original_max_position_embeddings": 256}},
    },
    "voxcpm-0.5b": {"seed": 5, "architecture": "voxcpm"},
    "voxcpm-1.5": {
        "seed": 6,
        "architecture": "voxcpm",
        "patch_size": 4,
        "audio_vae_config": {
            "encoder_rates": [2, 3, 7],
            "decoder_rates": [7, 3, 2],
            "sample_rate": 44_100,
        },
    },
}
VOXCPM2 = ("depthwise", "dense-mup", "stretched-rope", "trained")
# Where every network is compared; VoxCPM1.5's form differs from 0.5B's in sizes alone.
PAIRS = (*VOXCPM2, "voxcpm-0.5b")


@dataclass(frozen=True)
class Pair:
    """Our networks and the reference model with the same weights."""

    directory: Path
    config: VoxConfig
    ours: SpeechNets
    theirs: Any


@pytest.fixture(autouse=True)
def _quick_inference() -> Iterator[None]:
    with one_thread(), torch.no_grad():
        yield


@pytest.fixture(scope="session", params=PAIRS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    if request.param == "trained":
        directory = TRAINED_TINY
    else:
        folder = tmp_path_factory.mktemp(request.param)
        directory = write_checkpoint(folder, **VARIANTS[request.param])
    config = VoxConfig.from_dir(directory)
    return Pair(directory, config, load_speech_nets(directory), load_reference(directory))


@pytest.fixture
def generator() -> torch.Generator:
    """Inputs of a test: the same in every run."""
    return torch.Generator().manual_seed(20)
