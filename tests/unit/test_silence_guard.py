"""Silence at the end of a stream is noticed at its length; pauses and quiet voices are none."""

from __future__ import annotations

import numpy as np
import pytest

from voxnative.silence_guard import SilenceGuard, loudest

RATE_HZ = 16_000
PATCH = 2_560


def tone(seconds: float, level: float) -> np.ndarray:
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    return (level * np.sin(2 * np.pi * 200 * t)).astype(np.float32)


def heard_until(samples: np.ndarray, max_silence_s: float) -> float | None:
    """Seconds of audio after which the guard gives up; None if it never does."""
    guard = SilenceGuard(max_silence_s, RATE_HZ)
    for start in range(0, len(samples), PATCH):
        block = samples[start : start + PATCH]
        if not guard.hears(block, loudest(block)):
            return (start + len(block)) / RATE_HZ
    return None


@pytest.mark.parametrize("level", [0.9, 0.1, 0.02])
def test_silence_after_speech(level: float) -> None:
    samples = np.concatenate([tone(1, level), np.zeros(5 * RATE_HZ, np.float32)])
    ended_at = heard_until(samples, 2.0)
    assert ended_at == pytest.approx(3.0, abs=PATCH / RATE_HZ)


def test_noise_below_a_pause_s_level_is_silence() -> None:
    rng = np.random.default_rng(1)
    noise = 0.0005 * rng.standard_normal(5 * RATE_HZ).astype(np.float32)
    assert heard_until(np.concatenate([tone(1, 0.5), noise]), 2.0) is not None


def test_a_pause_is_none() -> None:
    pause = np.zeros(round(1.5 * RATE_HZ), np.float32)
    samples = np.concatenate([tone(1, 0.5), pause, tone(1, 0.5), pause, tone(0.2, 0.1), pause])
    assert heard_until(samples, 2.0) is None


def test_silence_from_the_start() -> None:
    assert heard_until(np.zeros(5 * RATE_HZ, np.float32), 2.0) == pytest.approx(2.0, abs=0.16)


def test_speech_is_none_however_quiet() -> None:
    assert heard_until(tone(5, 0.01), 1.0) is None


def test_zero_waits_for_ever() -> None:
    assert heard_until(np.zeros(60 * RATE_HZ, np.float32), 0) is None


def test_a_silence_shorter_than_a_patch() -> None:
    samples = np.concatenate([tone(0.15, 0.5), np.zeros(PATCH, np.float32)])
    assert heard_until(samples, 0.1) is not None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_loudest_sample_tells_of_any_that_is_not_finite(bad: float) -> None:
    samples = tone(0.16, 0.5)
    assert loudest(samples) == pytest.approx(0.5, abs=0.01)
    assert loudest(-samples) == loudest(samples)
    samples[100] = bad
    assert not np.isfinite(loudest(samples))


def test_the_end_of_the_sound_is_known_to_the_sample() -> None:
    """Whatever the chunks, and although most of them are not searched."""
    chance = np.random.default_rng(3)
    for _ in range(200):
        n_spoken, n_silent = chance.integers(1, 4_000, 2)
        spoken = np.full(n_spoken, 0.3, np.float32)
        limit_s = n_silent / RATE_HZ
        chunk = int(chance.integers(1, 900))
        for n_zeros, expected in ((n_silent - 1, True), (n_silent, False)):
            samples = np.concatenate([spoken, np.zeros(n_zeros, np.float32)])
            guard = SilenceGuard(limit_s, RATE_HZ)
            parts = [samples[i : i + chunk] for i in range(0, len(samples), chunk)]
            assert all(guard.hears(part, loudest(part)) for part in parts) is expected
