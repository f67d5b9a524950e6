"""What synthesis returns: chunks while it runs, a result at the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from voxnative.wav import save_audio

FinishReason = Literal["stop", "length", "silence", "bad_case"]


@dataclass(frozen=True, eq=False)
class SpeechChunk:
    """New samples of one request.

    Attributes:
        samples: ``[n]`` float32 mono, only what came since the previous chunk.
        sample_rate_hz: output rate.
        index: 0 for the first chunk of the request.
        piece: of a long text, the piece that is spoken.
    """

    samples: np.ndarray
    sample_rate_hz: int
    index: int
    piece: int = 0


@dataclass(frozen=True)
class PieceRecord:
    """How one piece of a long text went.

    Attributes:
        index: 0 for the first of the text.
        start: first character, in the whole text.
        end: behind its last character.
        finish_reason: as `SpeechResult`.
        n_patches: language-model steps.
        n_max_patches: the cap on them.
        seed: the seed that spoke it.
        n_attempts: 2 where the first attempt failed.
        is_joined: whether it took the voice over from what was spoken before it.
        duration_s: length of its audio.
        start_s: where its audio starts in the whole.
    """

    index: int
    start: int
    end: int
    finish_reason: FinishReason
    n_patches: int
    n_max_patches: int
    seed: int
    n_attempts: int
    is_joined: bool
    duration_s: float
    start_s: float = 0.0


@dataclass(frozen=True, eq=False)
class SpeechResult:
    """One finished request.

    Attributes:
        samples: ``[n]`` float32 mono.
        sample_rate_hz: output rate.
        finish_reason: "stop" (the model ended the speech), "length" (the cap on patches
            did: the text's own cap, ``max_steps``, ``max_seconds`` or the context), "silence"
            (nothing was heard for ``max_silence_s``) or "bad_case" (with ``retry_badcase``: too
            long for its text at every attempt).
        n_patches: language-model steps.
        n_max_patches: the cap on them.
        seed: the seed that reproduces this audio.
        n_attempts: how often it was spoken; more than 1 only with ``retry_badcase``.
        pieces: of a long text, in order; empty for a single request.
        ttfa_s: seconds from the call to the first samples.
        wall_s: seconds from the call to the last samples.
    """

    samples: np.ndarray
    sample_rate_hz: int
    finish_reason: FinishReason
    n_patches: int
    n_max_patches: int
    seed: int
    ttfa_s: float
    wall_s: float
    n_attempts: int = 1
    pieces: tuple[PieceRecord, ...] = ()

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
