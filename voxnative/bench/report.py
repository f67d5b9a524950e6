"""The report: JSON for machines, Markdown and charts for people; it grows with --append."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from voxnative.bench.charts import draw_charts
from voxnative.bench.definitions import as_lines
from voxnative.bench.errors import BenchError
from voxnative.bench.markdown import as_markdown

REPORT_JSON, REPORT_MD = "report.json", "report.md"
_SAME_IN_ONE_REPORT = ("mode", "with_quality")


def make_report(
    mode: str,
    matrix: Path,
    machine: dict[str, Any],
    with_quality: bool,
) -> dict[str, Any]:
    """A report without entries, and without the machine's rates."""
    return {
        "mode": mode,
        "matrix": matrix.name,
        "with_quality": with_quality,
        "machine": machine,
        "rates": {},
        "definitions": as_lines(),
        "targets": {},
        "entries": [],
        "not_run": [],
    }


def append_to(report: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The report in `folder` with this one's entries; its own ones of the same steps go.

    Raises:
        BenchError: there is none, or it is of another machine, commit or mode.
    """
    try:
        old = json.loads((folder / REPORT_JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(f"--append: no report in {folder}: {error}") from error
    differs = [key for key in _SAME_IN_ONE_REPORT if old[key] != report[key]]
    differs += [
        key for key in ("name", "cpu", "commit") if old["machine"][key] != report["machine"][key]
    ]
    if differs:
        raise BenchError(f"--append: the report in {folder} differs in {', '.join(differs)}")
    new = {_key(entry) for entry in report["entries"]}
    kept = [entry for entry in old["entries"] if _key(entry) not in new]
    ran = {(name, target) for row, target, at in new for name in (row, f"{row} {at}")}
    not_run = [n for n in old["not_run"] if (n["row"], n["target"]) not in ran]
    return old | {
        "entries": kept + report["entries"],
        "not_run": [*not_run, *(n for n in report["not_run"] if n not in not_run)],
        "targets": old["targets"] | report["targets"],
    }


def write_json(report: dict[str, Any], folder: Path) -> Path:
    """Write the report for machines alone: what a run that is cut off leaves."""
    path = folder / REPORT_JSON
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def write_report(report: dict[str, Any], folder: Path) -> list[Path]:
    """Write JSON, Markdown and charts; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    charts = draw_charts(report["entries"], folder)
    as_json, as_md = write_json(report, folder), folder / REPORT_MD
    as_md.write_text(as_markdown(report, [path.name for path in charts]), encoding="utf-8")
    return [as_json, as_md, *charts]


def _key(entry: dict[str, Any]) -> tuple[str, str, str]:
    return entry["row"], entry["target"], entry["point"]["label"]
