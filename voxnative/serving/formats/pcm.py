"""Raw samples: signed 16 bit, little endian, no header."""

from __future__ import annotations

import numpy as np

from voxnative.serving.formats.base import to_int16


class PcmEncoder:
    """Stateless; see `StreamEncoder`."""

    def __init__(self, sample_rate_hz: int, whole: bool) -> None:
        pass

    def start(self) -> bytes:
        return b""

    def feed(self, samples: np.ndarray) -> bytes:
        return to_int16(samples).tobytes()

    def finish(self) -> bytes:
        return b""
