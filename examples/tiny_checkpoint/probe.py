"""Step `probe`: how well the VAE keeps speech, while it still trains.

Sends the teacher's reading of some held-out lines through the VAE as it is on disk and writes
them to `WORK/probe.npz` (int16, by line), beside the reading itself: a word that the teacher's clip
has lost, no VAE brings back. Where whisper is installed it also gives both word error rates.
Without, take the file to a machine that has it, into a folder without a VAE: there the step scores
the file as it is.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import torch
from reference_model import build_vae
from shards import read_shard, shard_indices, shard_path
from training_files import newest_vae

N_LINES = 40
TEACHER = "teacher "  # before the line of an original clip


def write_probe(settings, work: Path, weights: Path, target: Path) -> None:
    """Reconstruct the first held-out lines with the VAE in `weights`."""
    device = torch.device(settings.vae.device)
    vae = build_vae(settings)
    vae.load_state_dict(torch.load(weights, map_location="cpu"))
    vae.to(device).eval()
    folder, rate_hz = work / "speech" / "heldout", settings.vae.sample_rate_hz
    clips = [
        clip for index in shard_indices(folder) for clip in read_shard(shard_path(folder, index))
    ]
    back = {}
    with torch.inference_mode():
        for clip in clips[:N_LINES]:
            audio = torch.from_numpy(clip.samples.astype(np.float32) / 32768).to(device)
            samples = vae.decode(vae.encode(audio[None, None], rate_hz))[0, 0, : len(audio)]
            back[str(clip.line)] = (samples.clamp(-1, 1) * 32767).short().cpu().numpy()
            back[f"{TEACHER}{clip.line}"] = clip.samples
    with open(target, "wb") as file:
        np.savez(file, rate_hz=rate_hz, **back)


def score_probe(settings, work: Path, path: Path) -> dict:
    """Word error rates of the lines in `path`, through the VAE and as the teacher read them."""
    from voxnative.bench.recognise import Recogniser, word_error_rate

    texts = (work / "corpus" / "heldout.txt").read_text().splitlines()
    recogniser = Recogniser(settings.evaluate.n_threads)
    rates: dict[str, float] = {}
    with np.load(path) as data:
        names = [name for name in data.files if name != "rate_hz"]
        rate_hz = int(data["rate_hz"])
        for rate, is_teacher in (("vae_wer", False), ("teacher_wer", True)):
            errors = [
                recogniser.score(
                    texts[int(name.removeprefix(TEACHER))],
                    data[name].astype(np.float32) / 32768,
                    rate_hz,
                )
                for name in names
                if name.startswith(TEACHER) == is_teacher
            ]
            misheard = [(e.n_errors, e.hypothesis) for e in errors if e.n_errors]
            print(rate, json.dumps(misheard[:10], ensure_ascii=False))
            rates[rate] = round(word_error_rate(errors), 2)
    return {"lines": len(errors)} | rates


def run(settings, work: Path) -> dict:
    """Write `WORK/probe.npz` where there is a VAE, and score it where whisper is installed.

    Raises:
        FileNotFoundError: there is neither a VAE nor a probe yet.
    """
    target, weights = work / "probe.npz", newest_vae(work / "vae")
    if weights is None and not target.exists():
        raise FileNotFoundError(f"{work / 'vae'} holds no weights yet: run train_vae first")
    summary: dict = {}
    if weights is not None:
        write_probe(settings, work, weights, target)
        summary["weights"] = weights.name
    if importlib.util.find_spec("faster_whisper") is not None:
        summary |= score_probe(settings, work, target)
    return summary
