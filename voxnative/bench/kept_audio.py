"""Answers kept as files, so that another machine can score them: ``--score-later``.

The folder is complete in itself: the answers as 16-bit FLAC (what the endpoint sent, sample for
sample) and the recordings of the voices that they are compared with.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from voxnative.bench.errors import BenchError
from voxnative.bench.record import RequestRecord, SpeechTask

FOLDER = "audio"
_FULL_SCALE = 32768  # of 16-bit PCM, as `HttpTarget` reads it


class AudioKeeper:
    """Writes answers into ``REPORT/audio``.

    Args:
        folder: of the report; created if needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)

    def keep(self, records: Sequence[RequestRecord], locale: str, step: str) -> dict[str, Any]:
        """Write the answers of one step; returns what an entry of the report says of them.

        Args:
            records: of answered requests.
            locale: of the texts.
            step: names the files; each step of a report has its own.
        """
        stem = re.sub(r"[^\w.-]+", "_", step)
        answers = []
        for record in records:
            name = f"{FOLDER}/{stem}.{record.task.index:03d}.flac"
            _write(self._folder / name, record.samples, record.rate_hz)
            reference = record.task.reference
            answers.append(
                {
                    "file": name,
                    "text": record.task.text,
                    "reference": None if reference is None else self._copied(Path(reference)),
                }
            )
        return {"locale": locale, "answers": answers}

    def _copied(self, reference: Path) -> str:
        digest = hashlib.sha256(reference.read_bytes()).hexdigest()[:12]
        name = f"{FOLDER}/voice-{digest}{reference.suffix}"
        if not (self._folder / name).exists():
            shutil.copyfile(reference, self._folder / name)
        return name


def read_kept(folder: Path, kept: Mapping[str, Any]) -> list[RequestRecord]:
    """The answers of one step again, with what a score needs of them.

    Args:
        folder: of the report.
        kept: what `AudioKeeper.keep` returned.

    Raises:
        BenchError: a file is not there.
    """
    import soundfile

    records = []
    for index, answer in enumerate(kept["answers"]):
        reference = answer["reference"] and str(folder / answer["reference"])
        for path in filter(None, (folder / answer["file"], reference)):
            if not Path(path).is_file():
                raise BenchError(f"score {folder}: no file {path}; the report's audio goes with it")
        samples, rate_hz = soundfile.read(folder / answer["file"], dtype="float32")
        task = SpeechTask(index, str(index), answer["text"], 0, reference=reference)
        records.append(RequestRecord(task, 0.0, pieces=[samples], rate_hz=rate_hz))
    return records


def _write(path: Path, samples: np.ndarray, rate_hz: int) -> None:
    import soundfile

    scaled = np.round(samples * _FULL_SCALE).clip(-_FULL_SCALE, _FULL_SCALE - 1)
    soundfile.write(path, scaled.astype(np.int16), rate_hz, format="FLAC", subtype="PCM_16")
