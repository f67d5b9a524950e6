"""What synthesis returns: chunks while it runs, a result at the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from voxnative.wav import save_audio

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, eq=False)
class SpeechChunk:
    """New samples of one request.

    Attributes:
        samples: ``[n]`` float32 mono, only what came since the previous chunk.
        sample_rate_hz: output rate.
        index: 0 for the first chunk of the request.
    """

    samples: np.ndarray
    sample_rate_hz: int
    index: int


@dataclass(frozen=True, eq=False)
class SpeechResult:
    """One finished request.

    Attributes:
        samples: ``[n]`` float32 mono.
        sample_rate_hz: output rate.
        finish_reason: "stop" (the model ended the speech) or "length" (the cap on patches
            did: the text's own cap, ``max_steps``, ``max_seconds`` or the context).
        n_patches: language-model steps.
        seed: the seed that reproduces this audio.
        ttfa_s: seconds from the call to the first samples.
        wall_s: seconds from the call to the last samples.
    """

    samples: np.ndarray
    sample_rate_hz: int
    finish_reason: FinishReason
    n_patches: int
    seed: int
    ttfa_s: float
    wall_s: float

    @property
    def duration_s(self) -> float:
        """Length of the audio in seconds."""
        return len(self.samples) / self.sample_rate_hz

    @property
    def rtf(self) -> float:
        """Real-time factor: wall seconds a second of audio; below 1 is faster than speech."""
        return self.wall_s / self.duration_s

    def save(self, path: str | Path) -> None:
        """Write a WAV or FLAC file, chosen by the path's suffix."""
        save_audio(path, self.samples, self.sample_rate_hz)
