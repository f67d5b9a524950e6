"""What `evaluate` speaks through: voxnative, or the reference implementation."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Speech:
    """One utterance: float32 samples, their rate, and whether the model stopped by itself."""

    samples: np.ndarray
    rate_hz: int
    stopped: bool


@dataclass(frozen=True)
class Timing:
    """Seconds from request to first audio and to the end, and seconds of audio made."""

    first_audio_s: float
    total_s: float
    audio_s: float


class VoxNativeEngine:
    """voxnative's offline API: requests share batches; timings are one request at a time."""

    def __init__(self, checkpoint: Path, settings):
        from voxnative import VoxNative

        e = settings.evaluate
        self._given = {"cfg": e.cfg_value, "timesteps": e.timesteps}
        self._seed = e.seed
        self._tts = VoxNative(checkpoint)

    def speak(self, texts: list[str]) -> list[Speech]:
        """Speak all texts at once."""
        results = self._tts.synthesize_batch(texts, seed=self._seed, **self._given)
        return [Speech(r.samples, r.sample_rate_hz, r.finish_reason == "stop") for r in results]

    def time_one(self, text: str) -> Timing:
        """Stream one text."""
        started, first_s, n_samples = time.perf_counter(), None, 0
        for chunk in self._tts.stream(text, seed=self._seed, **self._given):
            first_s = first_s or time.perf_counter() - started
            n_samples += len(chunk.samples)
        total_s = time.perf_counter() - started
        return Timing(first_s or total_s, total_s, n_samples / self._tts.sample_rate_hz)

    def close(self) -> None:
        """Stop the engine."""
        self._tts.close()


class ReferenceEngine:
    """voxcpm 2.0.3 on the CPU, one text after the other."""

    max_ratio, max_offset = 6, 10  # the reference's length cap: 6 * text tokens + 10 patches

    def __init__(self, checkpoint: Path, settings):
        import torch
        from reference_model import import_voxcpm2

        module = import_voxcpm2()
        module.tqdm = lambda iterable, **kwargs: iterable  # one bar a sentence hides ours
        self._torch, self._evaluate = torch, settings.evaluate
        torch.set_num_threads(settings.evaluate.n_threads)
        self._model = module.VoxCPM2Model.from_local(str(checkpoint), optimize=False, device="cpu")

    def _options(self, text: str) -> dict:
        from voxnative.text_frontend import normalize

        self._torch.manual_seed(self._evaluate.seed)
        e = self._evaluate
        return {
            "target_text": normalize(text),
            "cfg_value": e.cfg_value,
            "inference_timesteps": e.timesteps,
        }

    def speak(self, texts: list[str]) -> list[Speech]:
        """Speak the texts."""
        speeches = []
        for text in texts:
            options = self._options(text)
            samples = self._model.generate(**options).squeeze().numpy()
            n_patches = len(samples) // (self._model.chunk_size * self._model.patch_size)
            n_tokens = len(self._model.text_tokenizer(options["target_text"]))
            stopped = n_patches < self.max_ratio * n_tokens + self.max_offset
            speeches.append(Speech(samples, self._model.sample_rate, stopped))
        return speeches

    def time_one(self, text: str) -> Timing:
        """Stream one text."""
        started, first_s, n_samples = time.perf_counter(), None, 0
        for chunk in self._model.generate_streaming(**self._options(text)):
            first_s = first_s or time.perf_counter() - started
            n_samples += chunk.numel()
        total_s = time.perf_counter() - started
        return Timing(first_s or total_s, total_s, n_samples / self._model.sample_rate)

    def close(self) -> None:
        """Nothing to stop."""


ENGINES = {"voxnative": VoxNativeEngine, "reference": ReferenceEngine}
