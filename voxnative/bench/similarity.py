"""How alike two voices are: the cosine of their embeddings (`Resemblyzer`)."""

from __future__ import annotations

import warnings
from functools import lru_cache

import numpy as np

from voxnative.errors import MissingExtraError


class SpeakerEncoder:
    """Resemblyzer's voice encoder, on the CPU: the same figures on every machine."""

    def __init__(self) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # scipy.ndimage.morphology
                from resemblyzer import VoiceEncoder, preprocess_wav
        except ImportError as error:
            raise MissingExtraError(error.name or "resemblyzer", "bench") from error
        self._encoder = VoiceEncoder("cpu", verbose=False)
        self._preprocess = preprocess_wav
        self._of_file = lru_cache(maxsize=256)(self._embed_file)

    def embed(self, samples: np.ndarray, rate_hz: int) -> np.ndarray | None:
        """A voice's embedding, float32 ``[256]`` of length 1; None where nobody is heard.

        Args:
            samples: float32 ``[n]``.
            rate_hz: their rate.
        """
        if not np.any(samples):
            return None
        voiced = self._preprocess(samples.astype(np.float32), source_sr=rate_hz)
        return None if not len(voiced) else self._encoder.embed_utterance(voiced)

    def _embed_file(self, path: str) -> np.ndarray | None:
        import soundfile

        samples, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
        return self.embed(samples.mean(axis=1), rate_hz)

    def similarity(self, samples: np.ndarray, rate_hz: int, reference: str) -> float:
        """Cosine of the embeddings of some speech and of a recording; 0 where nobody is heard."""
        a, b = self.embed(samples, rate_hz), self._of_file(reference)
        return 0.0 if a is None or b is None else float(np.dot(a, b))
