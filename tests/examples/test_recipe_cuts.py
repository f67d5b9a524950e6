"""examples/tiny_checkpoint: where a paragraph of the teacher is cut into lines."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

RECIPE = Path(__file__).parents[2] / "examples" / "tiny_checkpoint"
RATE_HZ = 24_000


@pytest.fixture(scope="module")
def teachers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recipe_teachers", RECIPE / "teachers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def paragraph() -> np.ndarray:
    """Two sounds of a second around a pause from 1.0 to 1.3 s that is not quite silent."""
    rng = np.random.default_rng(0)
    samples = 0.3 * rng.standard_normal(round(2.3 * RATE_HZ)).astype(np.float32)
    samples[RATE_HZ : round(1.3 * RATE_HZ)] *= 0.01
    return samples


@pytest.mark.parametrize("predicted_s", [1.05, 1.2, 1.38])
def test_the_cut_lies_in_the_pause(
    predicted_s: float, teachers: ModuleType, paragraph: np.ndarray
) -> None:
    """Also where the predicted end of the blank lies behind the onset of the next line."""
    cut = teachers.quietest(paragraph, RATE_HZ, round(predicted_s * RATE_HZ))
    assert 1.03 <= cut / RATE_HZ <= 1.27


def test_labels_are_cut_with_the_samples(teachers: ModuleType, paragraph: np.ndarray) -> None:
    labels, ends = [5, 0, 7], np.array([1.0, 1.35, 2.3]) * RATE_HZ
    cut = round(1.2 * RATE_HZ)
    first = teachers._slice(paragraph, labels, ends, 0, cut)
    second = teachers._slice(paragraph, labels, ends, cut, len(paragraph))
    assert (first.labels, second.labels) == ([5, 0], [0, 7])
    assert np.allclose(first.durations_s, [1.0, 0.2])
    assert np.allclose(second.durations_s, [0.15, 0.95])
    assert np.array_equal(np.concatenate((first.samples, second.samples)), paragraph)
