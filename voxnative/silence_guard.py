"""Speech that has run out: notices silence at the end of samples that still come."""

from __future__ import annotations

import numpy as np

# What a pause holds, breath and noise, lies below this share of the loudest sample so far (-40 dB;
# the shipped checkpoint's pauses: -70 dB, the closed lips of a "p" for 40 ms: -55 dB). Before
# anything was said, below this level (-60 dB of full scale).
PAUSE_SHARE = 0.01
PAUSE_FLOOR = 0.001


class SilenceGuard:
    """Counts the silent samples at the end of a stream.

    Args:
        max_silence_s: silence after which speech has run out; 0 waits for ever.
        sample_rate_hz: rate of the samples.
    """

    def __init__(self, max_silence_s: float, sample_rate_hz: int) -> None:
        self._limit = round(max_silence_s * sample_rate_hz)
        self._peak = 0.0
        self._n_silent = 0

    def hears(self, samples: np.ndarray) -> bool:
        """Take the next samples, float32 [n]; False once the silence is too long."""
        loudness = np.abs(samples)
        self._peak = max(self._peak, float(loudness.max()))
        loud = np.flatnonzero(loudness > max(PAUSE_FLOOR, PAUSE_SHARE * self._peak))
        if len(loud):
            self._n_silent = len(samples) - 1 - int(loud[-1])
        else:
            self._n_silent += len(samples)
        return self._limit == 0 or self._n_silent < self._limit
