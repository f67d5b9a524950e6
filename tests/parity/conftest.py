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

_VARIANTS: dict[str, dict[str, Any]] = {
    "depthwise": {"seed": 1},
    "dense-mup": {"seed": 2, "depthwise": False, "use_mup": True},
    "stretched-rope": {
        "seed": 3,
        "no_rope": False,
        "lm_config": {"rope_scaling": {"original_max_position_embeddings": 256}},
    },
}


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


@pytest.fixture(scope="session", params=[*_VARIANTS, "trained"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    if request.param == "trained":
        directory = TRAINED_TINY
    else:
        folder = tmp_path_factory.mktemp(request.param)
        directory = write_checkpoint(folder, **_VARIANTS[request.param])
    config = VoxConfig.from_dir(directory)
    return Pair(directory, config, load_speech_nets(directory), load_reference(directory))


@pytest.fixture
def generator() -> torch.Generator:
    """Inputs of a test: the same in every run."""
    return torch.Generator().manual_seed(20)
