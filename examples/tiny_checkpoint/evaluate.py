"""Step `evaluate`: the model card's figures, measured on held-out lines.

Writes `evaluation-ENGINE.json` beside the other results: word error rates (checkpoint, teacher,
VAE reconstruction of the teacher), runaways and early stops, DNSMOS, speed and size.
`speak` makes the speech, here or before, perhaps elsewhere.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import speak
from engines import Speech, Timing
from reference_model import build_vae
from safetensors.torch import load_file
from shards import read_shard, shard_indices, shard_path
from tqdm import tqdm

from voxnative.bench.naturalness import Dnsmos
from voxnative.bench.recognise import Recogniser, WordErrors, word_error_rate

# English is spoken at 12 to 18 characters a second; half the time that takes is too short.
EARLY_S_PER_CHARACTER = 0.033


def teacher_speech(work: Path, n_lines: int, rate_hz: int) -> dict[int, Speech]:
    """The teacher's reading of the first held-out lines, by line; empty where it was not kept."""
    folder = work / "speech" / "heldout"
    clips = [
        clip for index in shard_indices(folder) for clip in read_shard(shard_path(folder, index))
    ]
    return {
        c.line: Speech(c.samples.astype(np.float32) / 32768, rate_hz, True)
        for c in clips
        if c.line < n_lines
    }


def reconstruct(checkpoint: Path, settings, speech: dict[int, Speech]) -> dict[int, Speech]:
    """Send speech through the checkpoint's VAE and back."""
    import torch

    vae = build_vae(settings)
    state = load_file(checkpoint / "audiovae.safetensors")
    vae.load_state_dict(
        {
            name: value.float() if value.is_floating_point() else value
            for name, value in state.items()
        }
    )
    back = {}
    with torch.inference_mode():
        for line, spoken in tqdm(speech.items(), desc="reconstruct", mininterval=5):
            audio = torch.from_numpy(spoken.samples)[None, None]
            samples = vae.eval().decode(vae.encode(audio, spoken.rate_hz))[0, 0].numpy()
            back[line] = Speech(samples[: len(spoken.samples)], spoken.rate_hz, True)
    return back


def word_errors(
    recogniser: Recogniser, texts: list[str], speech: dict[int, Speech], name: str
) -> list[WordErrors]:
    """Recognise and score the speech of each line."""
    bar = tqdm(speech.items(), desc=f"recognise {name}", mininterval=5)
    return [recogniser.score(texts[line], spoken.samples, spoken.rate_hz) for line, spoken in bar]


def dnsmos(speech: dict[int, Speech]) -> float:
    """Mean overall DNSMOS (P.835), 16 kHz."""
    model = Dnsmos()
    bar = tqdm(speech.values(), desc="dnsmos", mininterval=5)
    return statistics.mean(model.overall(spoken.samples, spoken.rate_hz) for spoken in bar)


def speed(timings: list[Timing]) -> dict:
    """Medians of real-time factor and first audio."""
    return {
        "rtf": round(statistics.median(t.total_s / t.audio_s for t in timings), 3),
        "first_audio_s": round(statistics.median(t.first_audio_s for t in timings), 3),
    }


def run(settings, work: Path, checkpoint: Path, engine: str) -> dict:
    """Measure `checkpoint` through `engine` and write `WORK/evaluation-ENGINE.json`."""
    e = settings.evaluate
    texts = (work / "corpus" / "heldout.txt").read_text().splitlines()
    speak.run(settings, work, checkpoint, engine)
    timings, speech = speak.load(work / f"spoken-{engine}")

    recogniser = Recogniser(e.n_threads)
    heard = {line: spoken for line, spoken in speech.items() if line < e.n_wer}
    errors = word_errors(recogniser, texts, heard, "checkpoint")
    summary = {
        "engine": engine,
        "n_wer": len(heard),
        "wer": round(word_error_rate(errors), 2),
        "n_stop": len(speech),
        "runaways": sum(not spoken.stopped for spoken in speech.values()),
        "early_stops": sum(
            len(spoken.samples) / spoken.rate_hz < EARLY_S_PER_CHARACTER * len(texts[line])
            for line, spoken in speech.items()
        ),
        "dnsmos": round(dnsmos(heard), 3),
        **speed(timings),
        "megabytes": round(sum(path.stat().st_size for path in checkpoint.glob("*.*")) / 1e6, 2),
    }
    teacher = teacher_speech(work, e.n_wer, settings.vae.sample_rate_hz)
    if teacher:
        rebuilt = reconstruct(checkpoint, settings, teacher)
        summary |= {
            "teacher_wer": round(
                word_error_rate(word_errors(recogniser, texts, teacher, "teacher")), 2
            ),
            "vae_wer": round(
                word_error_rate(word_errors(recogniser, texts, rebuilt, "reconstruction")), 2
            ),
            "teacher_dnsmos": round(dnsmos(teacher), 3),
            "vae_dnsmos": round(dnsmos(rebuilt), 3),
        }
    misheard = [
        {"text": texts[line], "heard": s.hypothesis}
        for line, s in zip(heard, errors, strict=True)
        if s.n_errors
    ]
    report = work / f"evaluation-{engine}.json"
    report.write_text(json.dumps(summary | {"misheard": misheard}, indent=1) + "\n")
    return summary
