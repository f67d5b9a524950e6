"""What one request did, as its client saw it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class SpeechTask:
    """One request of a benchmark, whatever is asked to speak it.

    Attributes:
        index: position in the run.
        item_id: of the dataset's line.
        text: what to speak.
        seed: of the noise.
        reference: path of a recording of the voice, with `reference_text`, its words.
        description: a voice in words.
        extra_body: further fields of the speech endpoint, as the matrix has them.
    """

    index: int
    item_id: str
    text: str
    seed: int
    reference: str | None = None
    reference_text: str | None = None
    description: str | None = None
    extra_body: dict[str, Any] = field(default_factory=dict)


@dataclass
class RequestRecord:
    """One request and its answer.

    Attributes:
        task: what was asked.
        sent_s: when, on the run's clock.
        arrivals_s: of each piece of audio, from `sent_s` on.
        pieces: float32 ``[n]`` samples of each.
        ended_s: last byte, from `sent_s` on.
        rate_hz: of the samples; 0 before any came.
        error: why there is no whole answer; None where there is one.
    """

    task: SpeechTask
    sent_s: float
    arrivals_s: list[float] = field(default_factory=list)
    pieces: list[np.ndarray] = field(default_factory=list)
    ended_s: float = 0.0
    rate_hz: int = 0
    error: str | None = None

    @property
    def samples(self) -> np.ndarray:
        """All samples, float32 ``[n]``."""
        return np.concatenate(self.pieces) if self.pieces else np.zeros(0, np.float32)

    @property
    def audio_s(self) -> float:
        """Length of the audio."""
        return sum(map(len, self.pieces)) / self.rate_hz if self.rate_hz else 0.0

    @property
    def ttfa_s(self) -> float:
        """Request sent to first audio received."""
        return self.arrivals_s[0]

    @property
    def rtf(self) -> float:
        """Request sent to last byte received, over the audio's length."""
        return self.ended_s / self.audio_s

    @property
    def gaps_s(self) -> list[float]:
        """Between one piece and the next."""
        return [b - a for a, b in zip(self.arrivals_s, self.arrivals_s[1:], strict=False)]

    @property
    def n_underruns(self) -> int:
        """Pieces that came after a player that began with the first one had run dry.

        It is taken to go on with such a piece at once.
        """
        n_late, dry_at = 0, self.arrivals_s[0]
        for at, piece in zip(self.arrivals_s, self.pieces, strict=True):
            if at > dry_at:
                n_late += 1
                dry_at = at
            dry_at += len(piece) / self.rate_hz
        return n_late
