"""Datasets in the layout of seed-tts-eval: ``DIR/LOCALE/meta.lst`` and recordings beside it.

A line is ``id|words of the recording|path of the recording|text to speak``; the layout
"seed-tts-design" has a description of a voice as a fifth field, "seed-tts-text" uses the text
alone. Source: github.com/BytedanceSpeech/seed-tts-eval.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from voxnative.bench.errors import BenchError
from voxnative.bench.record import SpeechTask

if TYPE_CHECKING:
    from voxnative.bench.matrix import Row

LAYOUTS = ("seed-tts", "seed-tts-text", "seed-tts-design")
LOCALES = ("en", "zh")


@dataclass(frozen=True)
class Item:
    """One line.

    Attributes:
        id: of the utterance.
        text: what to speak.
        reference: recording of the voice, in the layout "seed-tts".
        reference_text: its words.
        description: a voice in words, in the layout "seed-tts-design".
    """

    id: str
    text: str
    reference: Path | None = None
    reference_text: str | None = None
    description: str | None = None


def read_dataset(root: Path, layout: str, locale: str) -> list[Item]:
    """All lines of one locale, in the file's order; empty lines and ``#`` lines are left out.

    Raises:
        BenchError: no such file, a line without its fields, or a recording that is not there.
    """
    meta = root / locale / "meta.lst"
    try:
        lines = meta.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BenchError(
            f"dataset {root}: {error.strerror}: {meta}; valid: a directory in seed-tts layout"
        ) from error
    items = [
        _read_line(line, meta, number, layout)
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("#")
    ]
    if not items:
        raise BenchError(f"dataset {meta} holds no lines")
    return items


def _read_line(line: str, meta: Path, number: int, layout: str) -> Item:
    fields = [field.strip() for field in line.split("|")]
    n_fields = 5 if layout == "seed-tts-design" else 4
    if len(fields) < n_fields or not fields[3]:
        raise BenchError(f"{meta}, line {number}: valid: {n_fields} fields with | between them")
    if layout == "seed-tts-text":
        return Item(fields[0], fields[3])
    if layout == "seed-tts-design":
        return Item(fields[0], fields[3], description=fields[4])
    reference = meta.parent / fields[2]
    if not reference.is_file():
        raise BenchError(f"{meta}, line {number}: no recording {reference}")
    return Item(fields[0], fields[3], reference, fields[1])


def make_tasks(row: Row, items: list[Item], n: int, first: int = 0) -> list[SpeechTask]:
    """The first `n` requests of a row: lines shuffled by its seed, taken again where they end.

    Every target gets the same ones, with the same seeds of the noise.

    Args:
        row: the row.
        items: its dataset.
        n: requests.
        first: index of the first one; warm-ups use others than the run.
    """
    order = list(items)
    if row.shuffle:
        random.Random(row.seed).shuffle(order)
    return [
        SpeechTask(
            index=index,
            item_id=item.id,
            text=item.text,
            seed=row.seed + index,
            reference=None if item.reference is None else str(item.reference),
            reference_text=item.reference_text,
            description=item.description,
            extra_body=dict(row.extra_body),
        )
        for index in range(first, first + n)
        for item in [order[index % len(order)]]
    ]
