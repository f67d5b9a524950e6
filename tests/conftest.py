"""Shared fixtures: the shipped checkpoint, its config and tokenizer, short recordings.

Every test carries the marker of its folder (unit, parity, e2e, perf), and the tiers run in that
order, so that a broken network fails before an engine starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import voxnative

if TYPE_CHECKING:
    from voxnative.config import VoxConfig
    from voxnative.tokenizer import TextTokenizer

REPO = Path(__file__).resolve().parent.parent
TIERS = ("unit", "parity", "e2e", "perf")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    tier_of = {}
    for item in items:
        folder = item.path.relative_to(tests).parts[0]
        tier_of[item] = TIERS.index(folder) if folder in TIERS else len(TIERS)
        if folder in TIERS:
            item.add_marker(folder)
    items.sort(key=tier_of.__getitem__)


@pytest.fixture(scope="session")
def repo() -> Path:
    return REPO


@pytest.fixture(scope="session")
def tiny_dir() -> Path:
    """The trained checkpoint that ships with the package."""
    return Path(voxnative.__file__).parent / "checkpoints" / "tiny"


@pytest.fixture(scope="session")
def tiny_config(tiny_dir: Path) -> VoxConfig:
    from voxnative.config import VoxConfig

    return VoxConfig.from_dir(tiny_dir)


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_dir: Path) -> TextTokenizer:
    from voxnative.tokenizer import TextTokenizer

    return TextTokenizer.from_dir(tiny_dir)


@pytest.fixture(scope="session")
def voice_16k() -> np.ndarray:
    """1.3 s of a voice-like signal at 16 kHz: no whole number of patches, never silent."""
    t = np.arange(int(1.3 * 16_000)) / 16_000
    pitch = 120 + 20 * np.sin(2 * np.pi * 3 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / 16_000
    harmonics = sum(np.sin(k * phase) / k for k in range(1, 9))
    return (0.1 * harmonics).astype(np.float32)
