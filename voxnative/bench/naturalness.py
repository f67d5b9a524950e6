"""DNSMOS: how natural and clean listeners would find a recording, predicted (`speechmos`)."""

from __future__ import annotations

import numpy as np

from voxnative.errors import MissingExtraError

DNSMOS_RATE_HZ = 16000
WINDOW_SAMPLES = int(9.01 * DNSMOS_RATE_HZ)  # what the model hears at once


class Dnsmos:
    """DNSMOS P.835 with the weights of the package `speechmos`."""

    def __init__(self) -> None:
        try:
            from speechmos import dnsmos
        except ImportError as error:
            raise MissingExtraError(error.name or "speechmos", "bench") from error
        self._run = dnsmos.run

    def overall(self, samples: np.ndarray, rate_hz: int) -> float:
        """The overall opinion, 1 to 5.

        Args:
            samples: float32 ``[n]``, n > 0. A clip that is shorter than the model's window is
                repeated to fill one; the package would make up to ten windows of it and average
                opinions of the same sound.
            rate_hz: their rate.
        """
        if rate_hz != DNSMOS_RATE_HZ:
            import soxr

            samples = soxr.resample(samples, rate_hz, DNSMOS_RATE_HZ)
        if len(samples) < WINDOW_SAMPLES:
            samples = np.resize(samples, WINDOW_SAMPLES)
        return float(self._run(np.clip(samples, -1, 1), DNSMOS_RATE_HZ)["ovrl_mos"])
