"""Speech on disk: one compressed file holds the utterances of a fixed run of corpus lines.

A shard is written whole or not at all, so that "exists" means "done" and a cut run resumes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LABEL_RATE_HZ = 100  # phoneme labels are stored every 10 ms
FINISHED = "finished"  # file in the folder above the shards: the teacher reads no more for now


@dataclass(frozen=True)
class Clip:
    """One utterance.

    line: index of the corpus line read. samples: int16 [n_samples] at the recipe's rate.
    labels: uint8 [ceil(n_samples * 100 / rate)], the teacher's phoneme every 10 ms, 0 where silent.
    """

    line: int
    samples: np.ndarray
    labels: np.ndarray


def shard_path(folder: Path, index: int) -> Path:
    """Path of shard `index`."""
    return folder / f"shard-{index:05d}.npz"


def shard_indices(folder: Path) -> list[int]:
    """Indices of the finished shards, ascending."""
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("shard-*.npz"))


def write_shard(path: Path, clips: list[Clip]) -> None:
    """Write one shard atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.part")
    with open(partial, "wb") as file:
        np.savez(
            file,
            line=np.array([c.line for c in clips], np.int32),
            n_samples=np.array([len(c.samples) for c in clips], np.int32),
            n_labels=np.array([len(c.labels) for c in clips], np.int32),
            samples=np.concatenate([c.samples for c in clips]),
            labels=np.concatenate([c.labels for c in clips]),
        )
    partial.replace(path)


def read_shard(path: Path) -> list[Clip]:
    """Read one shard."""
    with np.load(path) as data:
        samples = np.split(data["samples"], np.cumsum(data["n_samples"])[:-1])
        labels = np.split(data["labels"], np.cumsum(data["n_labels"])[:-1])
        return [
            Clip(int(line), s, t) for line, s, t in zip(data["line"], samples, labels, strict=True)
        ]
