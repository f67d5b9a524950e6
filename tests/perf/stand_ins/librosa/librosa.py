"""librosa's `load` alone, by soundfile and soxr: all that the peer asks of it."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
import soundfile
import soxr


def load(file: BinaryIO, *, sr: int, mono: bool) -> tuple[np.ndarray, int]:
    """float32 [n_samples], or [n_channels, n_samples] where `mono` is false and there are more."""
    samples, rate_hz = soundfile.read(file, dtype="float32")  # [n_samples(, n_channels)]
    if mono and samples.ndim > 1:
        samples = samples.mean(axis=1)
    if rate_hz != sr:
        samples = soxr.resample(samples, rate_hz, sr)
    return np.ascontiguousarray(samples.T), sr
