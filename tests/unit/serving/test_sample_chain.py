"""Tempo and rate: continuous over chunks, nothing lost at the end."""

from __future__ import annotations

import numpy as np
import pytest
import soxr

from voxnative.serving.sample_chain import SampleChain

RATE_HZ = 16_000


def tone(n_samples: int) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * 440 * np.arange(n_samples) / RATE_HZ)).astype(np.float32)


def through(chain: SampleChain, samples: np.ndarray, step: int) -> np.ndarray:
    fed = [chain.feed(samples[at : at + step]) for at in range(0, len(samples), step)]
    return np.concatenate([*fed, chain.finish()])


def peak_hz(samples: np.ndarray) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax()) * RATE_HZ / len(samples)


def test_nothing_to_do_changes_nothing() -> None:
    chain = SampleChain(RATE_HZ, RATE_HZ, 1.0)
    assert chain.is_empty
    samples = tone(5_000)
    assert np.array_equal(through(chain, samples, 700), samples)


@pytest.mark.parametrize("speed", [0.25, 0.4, 0.5, 0.9, 1.5, 2.0, 4.0])
def test_speed_changes_the_length_and_not_the_pitch(speed: float) -> None:
    samples = tone(3 * RATE_HZ)
    found = through(SampleChain(RATE_HZ, RATE_HZ, speed), samples, 2_560)
    assert abs(len(found) - len(samples) / speed) <= 1
    assert peak_hz(found) == pytest.approx(440, abs=10)


@pytest.mark.parametrize("speed", [0.25, 0.5, 1.5, 4.0])
def test_the_tail_is_not_lost(speed: float) -> None:
    samples = np.zeros(RATE_HZ, np.float32)
    samples[-1_600:] = tone(1_600)
    found = through(SampleChain(RATE_HZ, RATE_HZ, speed), samples, 2_560)
    last = found[-round(1_000 / speed) :]
    assert np.sqrt((last**2).mean()) > 0.05


def test_samples_come_before_the_end() -> None:
    chain = SampleChain(RATE_HZ, 24_000, 1.5)
    fed = [len(chain.feed(tone(2_560))) for _ in range(6)]
    assert sum(fed) > 0.5 * 6 * 2_560


def test_resampling_does_not_depend_on_the_chunks() -> None:
    samples = tone(20_011)
    whole = soxr.resample(samples, RATE_HZ, 24_000)
    for step in (333, 2_560, 20_011):
        found = through(SampleChain(RATE_HZ, 24_000, 1.0), samples, step)
        assert len(found) == len(whole)
        assert np.abs(found - whole).max() < 1e-5


def test_the_tempo_does_not_depend_on_the_chunks() -> None:
    samples = tone(20_011)
    one, other = (through(SampleChain(RATE_HZ, 48_000, 1.25), samples, n) for n in (777, 2_560))
    assert np.array_equal(one, other)
