"""What every response format says of itself and does: samples in, bytes out as they exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

RATE_RANGE_HZ = (8_000, 48_000)


class StreamEncoder(Protocol):
    """One stream of one answer; samples are ``[n]`` float32 mono in -1..1."""

    def start(self) -> bytes:
        """Bytes in front of all samples."""
        ...

    def feed(self, samples: np.ndarray) -> bytes:
        """Bytes that these samples complete; may be empty."""
        ...

    def finish(self) -> bytes:
        """Everything that is left; the stream ends here."""
        ...


@dataclass(frozen=True)
class AudioFormat:
    """A value of ``response_format``.

    Attributes:
        name: as the request says it.
        media_type: content type; ``{rate}`` stands for the rate in Hz.
        encoding: value of the header ``X-Audio-Encoding``.
        encoder: makes an encoder from the rate in Hz and whether the whole answer is sent at
            once (its header can then hold true sizes).
        rates_hz: rates that the format can carry; None takes any of `RATE_RANGE_HZ`.
        native_rate_hz: rate where neither request nor server names one; None: the model's.
        streams_by_default: whether a request that does not set ``stream`` gets its audio as it
            is made. Formats whose header holds a length wait for it.
        is_cheap: an encoder call costs microseconds and may run in the event loop.
    """

    name: str
    media_type: str
    encoding: str
    encoder: Callable[[int, bool], StreamEncoder]
    rates_hz: tuple[int, ...] | None = None
    native_rate_hz: int | None = None
    streams_by_default: bool = True
    is_cheap: bool = False

    def content_type(self, rate_hz: int) -> str:
        return self.media_type.format(rate=rate_hz)

    def headers(self, rate_hz: int) -> dict[str, str]:
        """Headers that describe the samples of an answer."""
        return {
            "X-Audio-Sample-Rate": str(rate_hz),
            "X-Audio-Channels": "1",
            "X-Audio-Encoding": self.encoding,
        }


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Float samples -> s16, clipped at full scale."""
    return np.round(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2")
