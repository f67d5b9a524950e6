"""Step `speak`: the checkpoint says the held-out lines, to be judged by `evaluate`.

`WORK/spoken-ENGINE/` keeps what was said, a file a group of lines, and the timings, so that a cut
run goes on. What is older than the weights is made anew.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
from engines import ENGINES, Speech, Timing
from tqdm import tqdm

N_TIMED = 10
GROUP = 32  # texts the engine is given at once
TIMINGS = "timings.json"


def save_group(folder: Path, start: int, speech: list[Speech]) -> None:
    """Write the utterances of the lines from `start` on, whole or not at all."""
    partial = folder / f"{start}.part"
    with open(partial, "wb") as file:
        np.savez(
            file,
            samples=np.concatenate([spoken.samples for spoken in speech]).astype(np.float32),
            n_samples=[len(spoken.samples) for spoken in speech],
            stopped=[spoken.stopped for spoken in speech],
            rate_hz=speech[0].rate_hz,
        )
    partial.replace(group_path(folder, start, len(speech)))


def group_path(folder: Path, start: int, n_lines: int) -> Path:
    """File of a group."""
    return folder / f"lines-{start:05d}-{n_lines:03d}.npz"


def load(folder: Path) -> tuple[list[Timing], dict[int, Speech]]:
    """Read timings, and speech by line."""
    speech: dict[int, Speech] = {}
    for path in sorted(folder.glob("lines-*.npz")):
        start = int(path.stem.split("-")[1])
        with np.load(path) as data:
            samples = np.split(data["samples"], np.cumsum(data["n_samples"])[:-1])
            for i, (spoken, stopped) in enumerate(zip(samples, data["stopped"], strict=True)):
                speech[start + i] = Speech(spoken, int(data["rate_hz"]), bool(stopped))
    return [Timing(**t) for t in json.loads((folder / TIMINGS).read_text())], speech


def drop_outdated(folder: Path, checkpoint: Path) -> None:
    """Delete what older weights than the checkpoint's have said."""
    newest = max(path.stat().st_mtime for path in checkpoint.glob("*.safetensors"))
    for path in folder.glob("*"):
        if path.stat().st_mtime < newest:
            path.unlink()


def run(settings, work: Path, checkpoint: Path, engine: str) -> dict:
    """Time some lines one by one, then speak all, a group at a time."""
    e, folder = settings.evaluate, work / f"spoken-{engine}"
    folder.mkdir(exist_ok=True)
    drop_outdated(folder, checkpoint)
    n_lines = max(e.n_stop, e.n_wer)
    texts = (work / "corpus" / "heldout.txt").read_text().splitlines()[:n_lines]
    groups = {start: texts[start : start + GROUP] for start in range(0, len(texts), GROUP)}
    missing = {i: g for i, g in groups.items() if not group_path(folder, i, len(g)).exists()}
    if missing or not (folder / TIMINGS).exists():
        speaker = ENGINES[engine](checkpoint, settings)
        try:
            if not (folder / TIMINGS).exists():
                speaker.time_one(texts[0])  # warm
                timings = [asdict(speaker.time_one(text)) for text in texts[:N_TIMED]]
                (folder / TIMINGS).write_text(json.dumps(timings))
            for start, group in tqdm(missing.items(), desc="speak", unit="group", mininterval=5):
                save_group(folder, start, speaker.speak(group))
        finally:
            speaker.close()
    return {"lines": len(texts), "spoken_now": sum(map(len, missing.values()))}
