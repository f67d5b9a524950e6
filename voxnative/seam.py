"""Where the audio of one piece meets the next: a short dip to zero, so that nothing clicks."""

from __future__ import annotations

from functools import cache

import numpy as np

SEAM_S = 0.005


@cache
def _rise(sample_rate_hz: int) -> np.ndarray:
    """Factors of a fade in: half a cosine, 0 and 1 themselves left out."""
    n_samples = max(1, round(SEAM_S * sample_rate_hz))
    rise = np.sin(np.pi / 2 * (np.arange(n_samples) + 0.5) / n_samples) ** 2
    return rise.astype(np.float32)


class Seam:
    """Fades the end of each piece out and the start of the next one in.

    The last few milliseconds are held back until it is known whether they are an end.

    Args:
        sample_rate_hz: rate of the samples.
    """

    def __init__(self, sample_rate_hz: int) -> None:
        self._rise = _rise(sample_rate_hz)
        self._held = np.zeros(0, np.float32)
        self._n_risen = len(self._rise)  # of a piece's first samples that have been faded in

    def feed(self, samples: np.ndarray, *, is_last_piece: bool) -> np.ndarray:
        """The next samples [n] of a piece -> those that are ready, [m].

        Nothing of the last piece is held back: a text of one piece passes unchanged.
        """
        n_rising = min(len(self._rise) - self._n_risen, len(samples))
        if n_rising:
            samples = samples.copy()
            samples[:n_rising] *= self._rise[self._n_risen :][:n_rising]
            self._n_risen += n_rising
        if len(self._held):
            samples = np.concatenate([self._held, samples])
        n_ready = len(samples) if is_last_piece else max(0, len(samples) - len(self._rise))
        self._held = samples[n_ready:]
        return samples[:n_ready]

    def join(self) -> None:
        """The piece is over and another follows: what is held back fades out, and comes with it."""
        fall = self._rise[::-1]
        self._held = self._held * fall[len(fall) - len(self._held) :]
        self._n_risen = 0
