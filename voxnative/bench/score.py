"""``voxnative bench score DIR``: the quality of a report whose answers were kept for later."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from voxnative.bench.errors import BenchError
from voxnative.bench.kept_audio import read_kept
from voxnative.bench.machine import machine_facts
from voxnative.bench.quality import QualityJudge
from voxnative.bench.record import RequestRecord
from voxnative.bench.report import REPORT_JSON
from voxnative.bench.run_point import add_quality_verdicts, waits_for_scores


def score_report(folder: Path) -> dict[str, Any]:
    """The report in `folder` with its steps scored and their limits on quality judged.

    Raises:
        BenchError: there is no report, nothing in it waits for scores, or its audio is not there.
        MissingExtraError: a package of the extra `bench` is not installed.
    """
    try:
        report: dict[str, Any] = json.loads((folder / REPORT_JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(f"score: no report in {folder}: {error}") from error
    waiting = [entry for entry in report["entries"] if waits_for_scores(entry)]
    if not waiting:
        raise BenchError(f"score: nothing in {folder} waits for scores (--score-later keeps audio)")
    answers = [read_kept(folder, entry["audio"]) for entry in waiting]
    judge = QualityJudge()
    for entry, records in zip(waiting, answers, strict=True):
        label = f"{entry['row']} {entry['point']['label']} {entry['target']}"
        entry["quality"] = judge.score(records, entry["audio"]["locale"], _progress(label))
        add_quality_verdicts(entry)
    facts = machine_facts()
    return report | {"scored": {key: facts[key] for key in ("time", "cpu", "packages")}}


def _progress(label: str) -> Any:
    def wrap(records: Iterable[RequestRecord]) -> Iterable[RequestRecord]:
        return tqdm(records, desc=f"{label} quality", file=sys.stderr, mininterval=0.5)

    return wrap
