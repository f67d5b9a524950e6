"""Step `teach`: the teacher reads the corpus, in parallel, shard by shard."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from scipy.signal import resample_poly
from shards import FINISHED, LABEL_RATE_HZ, Clip, shard_indices, shard_path, write_shard
from teachers import Line, Spoken, make_teacher
from tqdm import tqdm

MIN_SECONDS = 0.64  # a reader of VoxCPM2 ignores the stop head during the first three patches


def to_clip(spoken: Spoken, line: int, rate_hz: int, rms: float, edge_silence_s: float) -> Clip:
    """Resample, trim, level and label one utterance.

    Args:
        spoken: the teacher's output.
        line: corpus line it belongs to.
        rate_hz: rate of the clip.
        rms: root mean square of the speech after levelling (full scale 1).
        edge_silence_s: silence kept before and after the speech.

    Raises:
        ValueError: nothing louder than silence was said.
    """
    divisor = np.gcd(rate_hz, spoken.rate_hz)
    samples = resample_poly(spoken.samples, rate_hz // divisor, spoken.rate_hz // divisor).astype(
        np.float32
    )
    window = rate_hz // LABEL_RATE_HZ
    n_windows = len(samples) // window
    energy = np.sqrt(np.mean(samples[: n_windows * window].reshape(n_windows, window) ** 2, axis=1))
    loud = np.flatnonzero(energy > max(1e-4, 0.01 * energy.max()))
    if len(loud) == 0:
        raise ValueError(f"line {line}: the teacher said nothing")
    n_edge = round(edge_silence_s * LABEL_RATE_HZ)
    first, last = loud[0] - n_edge, loud[-1] + 1 + n_edge  # in windows; may leave the clip
    last = max(last, first + round(MIN_SECONDS * LABEL_RATE_HZ))

    level = rms / np.sqrt(np.mean(samples[loud[0] * window : (loud[-1] + 1) * window] ** 2))
    samples *= min(level, 0.95 / np.abs(samples).max())

    ends = np.cumsum(spoken.durations_s) * LABEL_RATE_HZ
    which = np.searchsorted(ends, np.arange(n_windows) + 0.5).clip(max=len(ends) - 1)
    labels = np.asarray(spoken.labels, np.uint8)[which]
    before, after = max(0, -first), max(0, last - n_windows)
    labels = np.pad(labels, (before, after))[first + before : last + before]
    samples = np.pad(samples[: n_windows * window], (before * window, after * window))
    samples = samples[(first + before) * window : (last + before) * window]
    return Clip(line, np.round(samples * 32767).astype(np.int16), labels)


def pending_shards(folder: Path, n_lines: int, lines_per_shard: int) -> list[int]:
    """Indices of the shards that still have to be read."""
    done = set(shard_indices(folder))
    return [i for i in range(-(-n_lines // lines_per_shard)) if i not in done]


def read_shards(settings, jobs: Iterable[tuple[Path, int, list[Line]]], stop_at: float) -> None:
    """Read the given shards until `stop_at` (monotonic) or the process's share of the hours."""
    import torch

    torch.set_num_threads(1)
    teacher = make_teacher(settings)
    t = settings.teacher
    wanted_s = (t.hours or 1e9) * 3600 / t.n_processes  # of this process
    for folder, index, lines in jobs:
        if time.monotonic() > stop_at or wanted_s <= 0:
            return
        clips = []
        for line, spoken in zip(lines, teacher.say(lines), strict=True):
            try:
                clips.append(
                    to_clip(
                        spoken, line.index, settings.vae.sample_rate_hz, t.rms, t.edge_silence_s
                    )
                )
            except ValueError as error:
                print(f"skipped: {error}", flush=True)
        write_shard(shard_path(folder, index), clips)
        wanted_s -= sum(len(clip.samples) for clip in clips) / settings.vae.sample_rate_hz


def _worker(settings, jobs, stop_at) -> None:
    os.nice(5)
    read_shards(settings, jobs, stop_at)


def run(settings, work: Path) -> dict:
    """Write the missing shards of `speech/heldout`, then of `speech/train`."""
    t = settings.teacher
    jobs = []
    for part in ("heldout", "train"):
        texts = (work / "corpus" / f"{part}.txt").read_text().splitlines()
        phonemes_path = work / "corpus" / f"{part}.phonemes"
        phonemes = (
            phonemes_path.read_text().splitlines() if phonemes_path.exists() else [""] * len(texts)
        )
        lines = [Line(*line) for line in zip(range(len(texts)), texts, phonemes, strict=True)]
        folder = work / "speech" / part
        for i in pending_shards(folder, len(lines), t.lines_per_shard):
            jobs.append((folder, i, lines[i * t.lines_per_shard : (i + 1) * t.lines_per_shard]))
    finished = work / "speech" / FINISHED
    finished.unlink(missing_ok=True)
    stop_at = time.monotonic() + (t.time_limit_s or 1e9)
    if t.n_processes == 1:
        read_shards(settings, tqdm(jobs, desc="teach", unit="shard"), stop_at)
    elif jobs:
        context = multiprocessing.get_context("spawn")
        workers = [
            context.Process(target=_worker, args=(settings, jobs[i :: t.n_processes], stop_at))
            for i in range(t.n_processes)
        ]
        for worker in workers:
            worker.start()
        with tqdm(total=len(jobs), desc="teach", unit="shard") as bar:
            while any(worker.is_alive() for worker in workers):
                time.sleep(1.0)
                bar.update(sum(shard_path(folder, i).exists() for folder, i, _ in jobs) - bar.n)
        if failed := [worker.exitcode for worker in workers if worker.exitcode]:
            raise RuntimeError(
                f"{len(failed)} of {len(workers)} teacher processes failed (exit codes {failed})"
            )
    finished.parent.mkdir(parents=True, exist_ok=True)
    finished.touch()
    return {part: len(shard_indices(work / "speech" / part)) for part in ("heldout", "train")}
