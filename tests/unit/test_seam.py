"""Pieces meet at zero; everything else stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

from voxnative.seam import SEAM_S, Seam

RATE_HZ = 16_000
N_FADE = round(SEAM_S * RATE_HZ)


def joined(pieces: list[list[np.ndarray]]) -> np.ndarray:
    seam, parts = Seam(RATE_HZ), []
    for number, piece in enumerate(pieces):
        for block in piece:
            is_last = number == len(pieces) - 1
            parts.append(seam.feed(block, is_last_piece=is_last))
        seam.join()
    return np.concatenate(parts)


@pytest.mark.parametrize("block", [2560, 100, 37])
def test_only_the_joint_changes(block: int) -> None:
    rng = np.random.default_rng(1)
    pieces = [rng.uniform(-1, 1, n).astype(np.float32) for n in (5120, 2560, 7680)]
    blocks = [np.split(piece, range(block, len(piece), block)) for piece in pieces]
    given, got = np.concatenate(pieces), joined(blocks)
    assert got.dtype == np.float32
    assert len(got) == len(given)
    changed = np.flatnonzero(got != given)
    at_a_joint = np.zeros(len(given), bool)
    for joint in (5120, 7680):
        at_a_joint[joint - N_FADE : joint + N_FADE] = True
        assert np.abs(got[joint - 1 : joint + 1]).max() < 1e-3
    assert len(changed) > 3 * N_FADE
    assert at_a_joint[changed].all()


def test_a_step_between_two_levels_becomes_a_dip() -> None:
    got = joined([[np.full(2560, 0.5, np.float32)], [np.full(2560, -0.5, np.float32)]])
    # The steepest step of a 5 ms half cosine; 1.0 without the fade.
    assert np.abs(np.diff(got)).max() < 0.5 * np.pi / 2 / N_FADE * 1.1


def test_the_given_samples_are_not_written_to() -> None:
    blocks = [[np.ones(2560, np.float32)], [np.ones(2560, np.float32)]]
    joined(blocks)
    assert all((block == 1).all() for piece in blocks for block in piece)


def test_one_piece_passes_at_once() -> None:
    samples = np.ones(100, np.float32)
    assert np.array_equal(Seam(RATE_HZ).feed(samples, is_last_piece=True), samples)


def test_one_piece_is_not_copied() -> None:
    blocks = [np.ones(100, np.float32) for _ in range(3)]
    seam = Seam(RATE_HZ)
    assert all(np.shares_memory(seam.feed(block, is_last_piece=True), block) for block in blocks)
