"""One step of a row's sweep on one target: warm up, load, figures, quality, limits."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from voxnative.bench.baseline import judge
from voxnative.bench.dataset import Item, make_tasks
from voxnative.bench.definitions import QUALITY
from voxnative.bench.kept_audio import AudioKeeper
from voxnative.bench.load import arrival_times, closed_loop, open_loop
from voxnative.bench.matrix import LoadPoint, Row
from voxnative.bench.metrics import summarise
from voxnative.bench.quality import QualityJudge
from voxnative.bench.record import RequestRecord, SpeechTask
from voxnative.bench.target import Target, time_request

_MAX_ERRORS_SHOWN = 5


async def run_point(
    target: Target,
    row: Row,
    point: LoadPoint,
    items: list[Item],
    judge_quality: QualityJudge | AudioKeeper | None,
    n_quality: int,
) -> dict[str, Any]:
    """Run one step; returns its entry in the report, without verdicts.

    Args:
        target: started.
        row: what.
        point: the step.
        items: the row's dataset.
        judge_quality: None leaves quality out; a keeper leaves it to `score.py`.
        n_quality: answers to score; a row of the phase "quality" has all of them scored.
    """

    async def send(task: SpeechTask, started: float) -> RequestRecord:
        return await time_request(target, task, started)

    n_streams = point.max_concurrency or 1
    warmups = make_tasks(row, items, point.num_warmups, first=point.num_prompts)
    label = f"{row.name} {point}"
    if warmups:
        with _bar(len(warmups), f"{label} warm-up") as bar:
            await closed_loop(send, warmups, n_streams, lambda _: bar.update())

    tasks = make_tasks(row, items, point.num_prompts)
    load_before = os.getloadavg()[0]
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with _bar(len(tasks), f"{label} {target.name}") as bar:
        if point.request_rate is None:
            records, wall_s = await closed_loop(send, tasks, n_streams, lambda _: bar.update())
        else:
            times = arrival_times(len(tasks), point.request_rate, row.burstiness, row.seed)
            records, wall_s = await open_loop(send, tasks, list(times), lambda _: bar.update())

    good = [record for record in records if record.error is None]
    quality, kept = None, {}
    scored = good if row.measure_quality else good[:n_quality]
    if isinstance(judge_quality, QualityJudge):
        quality = judge_quality.score(scored, row.locale, _scoring(label))
    elif judge_quality is not None:
        kept["audio"] = judge_quality.keep(scored, row.locale, f"{label} {target.name}")
    return {
        "row": row.name,
        "task": row.task,
        "eval_phase": row.eval_phase,
        "target": target.name,
        "point": asdict(point) | {"label": str(point)},
        "time": at,
        "load_average": round(load_before, 2),
        "result": summarise(records, wall_s),
        "quality": quality,
        "requests": _columns(good),
        "errors": [r.error for r in records if r.error is not None][:_MAX_ERRORS_SHOWN],
        **kept,
    }


def add_verdicts(entry: dict[str, Any], row: Row, point: LoadPoint, machine: str) -> None:
    """Judge an entry of our own by the row's limits; those on quality once it is scored."""
    limits = row.baseline.limits(machine, point.step, point.load)
    if waits_for_scores(entry):
        entry["limits_on_quality"] = {k: v for k, v in limits.items() if k in QUALITY}
        limits = {k: v for k, v in limits.items() if k not in QUALITY}
    entry["verdicts"] = _judged(entry, limits)


def add_quality_verdicts(entry: dict[str, Any]) -> None:
    """Judge what `add_verdicts` had to leave, once the entry is scored."""
    limits = entry.pop("limits_on_quality", None)
    if limits:
        entry["verdicts"] += _judged(entry, limits)


def waits_for_scores(entry: Mapping[str, Any]) -> bool:
    """Whether an entry's answers were kept and are not scored yet."""
    return "audio" in entry and entry["quality"] is None


def _judged(entry: Mapping[str, Any], limits: Mapping[str, float]) -> list[dict[str, Any]]:
    figures: dict[str, Any] = dict(entry["result"])
    for name, estimate in (entry["quality"] or {}).items():
        if isinstance(estimate, Mapping):
            figures[name] = estimate["value"]
    return [asdict(v) | {"text": str(v)} for v in judge(limits, figures)]


def is_good(entry: Mapping[str, Any]) -> bool:
    """Whether all requests were answered and all limits kept."""
    kept = all(verdict["ok"] for verdict in entry.get("verdicts", ()))
    return kept and entry["result"]["failed"] == 0


def _columns(good: list[RequestRecord]) -> dict[str, list[float]]:
    """Each request's figures, for distributions."""
    return {
        "sent_s": [round(r.sent_s, 4) for r in good],
        "audio_ttfp_ms": [round(1000 * r.ttfa_s, 2) for r in good],
        "audio_rtf": [round(r.rtf, 4) for r in good],
        "audio_duration_s": [round(r.audio_s, 3) for r in good],
        "underruns": [float(r.n_underruns) for r in good],
    }


def _bar(total: int, text: str) -> Any:
    return tqdm(total=total, desc=text, file=sys.stderr, mininterval=0.5, leave=True)


def _scoring(label: str) -> Any:
    def wrap(records: Iterable[RequestRecord]) -> Iterable[RequestRecord]:
        return tqdm(records, desc=f"{label} quality", file=sys.stderr, mininterval=0.5)

    return wrap
