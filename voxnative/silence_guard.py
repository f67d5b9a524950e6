"""Speech that has run out: notices silence at the end of samples that still come."""

from __future__ import annotations

import numpy as np

# What a pause holds, breath and noise, lies below this share of the loudest sample so far (-40 dB;
# the shipped checkpoint's pauses: -70 dB, the closed lips of a "p" for 40 ms: -55 dB). Before
# anything was said, below this level (-60 dB of full scale).
PAUSE_SHARE = 0.01
PAUSE_FLOOR = 0.001


def loudest(samples: np.ndarray) -> float:
    """The largest absolute value of float32 [n]; not finite where some sample is not."""
    return max(float(np.maximum.reduce(samples)), -float(np.minimum.reduce(samples)))


class SilenceGuard:
    """Counts the silent samples at the end of a stream.

    A chunk with something loud in it is only searched for where its sound ends when that decides:
    a chunk of speech costs no more than :func:`loudest`.

    Args:
        max_silence_s: silence after which speech has run out; 0 waits for ever.
        sample_rate_hz: rate of the samples.
    """

    def __init__(self, max_silence_s: float, sample_rate_hz: int) -> None:
        self._limit = round(max_silence_s * sample_rate_hz)
        self._peak = 0.0
        self._last_loud: np.ndarray | None = None
        self._level = 0.0  # above which something in `_last_loud` is loud
        self._n_silent = 0  # in the chunks behind it

    def hears(self, samples: np.ndarray, peak: float) -> bool:
        """Take the next samples; False once the silence is too long.

        Args:
            samples: float32 [n].
            peak: their :func:`loudest`.
        """
        self._peak = max(self._peak, peak)
        level = max(PAUSE_FLOOR, PAUSE_SHARE * self._peak)
        if peak > level:
            self._last_loud, self._level, self._n_silent = samples, level, 0
        else:
            self._n_silent += len(samples)
        if self._limit == 0:
            return True
        n_at_most = self._n_silent + (0 if self._last_loud is None else len(self._last_loud) - 1)
        return n_at_most < self._limit or self._n_silent + self._tail() < self._limit

    def _tail(self) -> int:
        """Silent samples at the end of the last chunk that was loud."""
        if self._last_loud is None:
            return 0
        loud = np.flatnonzero(np.abs(self._last_loud) > self._level)
        return len(self._last_loud) - 1 - int(loud[-1])
