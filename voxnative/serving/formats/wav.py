"""WAV: one header, then raw samples."""

from __future__ import annotations

import struct

import numpy as np

from voxnative.serving.formats.base import to_int16

UNKNOWN_SIZE = 0xFFFFFFFF
BYTES_PER_SAMPLE = 2
_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_PCM = 1


def wav_header(sample_rate_hz: int, n_samples: int | None) -> bytes:
    """The 44 bytes in front of mono s16 samples.

    Args:
        sample_rate_hz: rate of the samples.
        n_samples: their number; None while it is unknown, which both sizes then say.
    """
    data_size = UNKNOWN_SIZE if n_samples is None else n_samples * BYTES_PER_SAMPLE
    riff_size = UNKNOWN_SIZE if n_samples is None else data_size + _HEADER.size - 8
    byte_rate = sample_rate_hz * BYTES_PER_SAMPLE
    form = (16, _PCM, 1, sample_rate_hz, byte_rate, BYTES_PER_SAMPLE, 8 * BYTES_PER_SAMPLE)
    return _HEADER.pack(b"RIFF", riff_size, b"WAVE", b"fmt ", *form, b"data", data_size)


class WavEncoder:
    """Streamed: a header with unknown sizes, once. Whole: everything at the end, true sizes."""

    def __init__(self, sample_rate_hz: int, whole: bool) -> None:
        self._rate_hz = sample_rate_hz
        self._held: list[bytes] | None = [] if whole else None

    def start(self) -> bytes:
        return wav_header(self._rate_hz, None) if self._held is None else b""

    def feed(self, samples: np.ndarray) -> bytes:
        encoded = to_int16(samples).tobytes()
        if self._held is None:
            return encoded
        self._held.append(encoded)
        return b""

    def finish(self) -> bytes:
        if self._held is None:
            return b""
        data = b"".join(self._held)
        return wav_header(self._rate_hz, len(data) // BYTES_PER_SAMPLE) + data
