"""The report as Markdown: machine, verdicts, one table a row, ratios to the peers, definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voxnative.bench.run_point import waits_for_scores

_OURS = "voxnative"
# Column title, metric, digits.
_COLUMNS = (
    ("TTFA median ms", "median_audio_ttfp_ms", 0),
    ("p90", "p90_audio_ttfp_ms", 0),
    ("p99", "p99_audio_ttfp_ms", 0),
    ("RTF median", "median_audio_rtf", 3),
    ("p90", "p90_audio_rtf", 3),
    ("p99", "p99_audio_rtf", 3),
    ("gap p99 ms", "p99_chunk_gap_ms", 0),
    ("underruns a request", "mean_underruns", 2),
    ("audio s / s", "audio_throughput", 2),
)
_QUALITY = (
    ("WER %", "wer_percent", 1),
    ("similarity", "speaker_similarity", 3),
    ("DNSMOS", "dnsmos_ovrl", 2),
)
_RATIOS = ("median_audio_ttfp_ms", "median_audio_rtf", "audio_throughput")


def as_markdown(report: Mapping[str, Any], charts: list[str]) -> str:
    """The whole document.

    Args:
        report: see `report.py`.
        charts: file names of pictures beside it.
    """
    lines = [f"# Speech benchmark: {report['matrix']}, {report['mode']}", ""]
    lines += _machine(report["machine"], report["rates"])
    if "scored" in report:
        scored = report["scored"]
        lines += [f"- quality scored afterwards: {scored['time']}, {scored['cpu']}"]
    if not report["with_quality"]:
        lines += [
            "",
            "**Quality was not measured (`--no-quality`): these speeds say nothing of it.**",
        ]
    if any(waits_for_scores(entry) for entry in report["entries"]):
        lines += ["", "**Quality is not scored yet: `voxnative bench score DIR` adds it.**"]
    lines += ["", *_verdicts(report["entries"])]
    for row in dict.fromkeys(entry["row"] for entry in report["entries"]):
        entries = [entry for entry in report["entries"] if entry["row"] == row]
        models = ", ".join(dict.fromkeys(e["model"] for e in entries if "model" in e))
        lines += ["", f"## {row}", "", *([f"Model: {models}", ""] if models else [])]
        lines += _table(entries)
        lines += _ratios(entries)
    if report["not_run"]:
        lines += ["", "## Not run", ""]
        lines += [f"- {n['target']} on {n['row']}: {n['why']}" for n in report["not_run"]]
    if report["targets"]:
        lines += ["", "## Targets", ""]
        lines += [f"- {name}: {_facts(facts)}" for name, facts in report["targets"].items()]
    if charts:
        lines += ["", "## Charts", "", *(f"![{name}]({name})" for name in charts)]
    lines += ["", "## Definitions", "", *(f"- {line}" for line in report["definitions"])]
    lines += ["", "Brackets hold 95 % bootstrap intervals over the scored requests."]
    return "\n".join(lines) + "\n"


def _machine(machine: Mapping[str, Any], rates: Mapping[str, Any]) -> list[str]:
    gpus = ", ".join(f"{g['name']} ({g['memory']}, driver {g['driver']})" for g in machine["gpus"])
    packages = ", ".join(f"{name} {v}" for name, v in machine["packages"].items())
    return [
        f"- {machine['time']}, voxnative {machine['voxnative']}, commit {machine['commit']}",
        f"- {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB"
        + (f"; {gpus}" if gpus else "; no GPU")
        + f"; load average at the start {machine['load_average'][0]}",
        f"- measured at the start: copies {rates['copy_gb_s']:.1f} GB/s, matrix products"
        f" {rates['matmul_tflop_s']:.3g} TFLOP/s ({rates['device']}, {rates['dtype']})",
        f"- Python {machine['python']}, {packages}",
    ]


def _verdicts(entries: list[dict[str, Any]]) -> list[str]:
    n_limits = sum(len(entry.get("verdicts", ())) for entry in entries)
    missed = [
        f"- **missed**: {entry['row']} {entry['point']['label']}: {verdict['text']}"
        for entry in entries
        for verdict in entry.get("verdicts", ())
        if not verdict["ok"]
    ]
    failed = [
        f"- **failed requests**: {entry['row']} {entry['point']['label']} {entry['target']}:"
        f" {entry['result']['failed']} of {entry['result']['num_prompts']}; {entry['errors'][0]}"
        for entry in entries
        if entry["result"]["failed"]
    ]
    n_open = sum(len(entry.get("limits_on_quality", ())) for entry in entries)
    later = f" {n_open} more wait for the scores." if n_open else ""
    return [f"Limits kept: {n_limits - len(missed)} of {n_limits}.{later}", *missed, *failed]


def _table(entries: list[dict[str, Any]]) -> list[str]:
    titles = ["target", "load", "requests", "machine load"]
    titles += [title for title, *_ in (*_COLUMNS, *_QUALITY)]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for entry in entries:
        cells = [entry["target"], entry["point"]["label"], str(entry["result"]["completed"])]
        cells += [f"{entry['load_average']:.1f}"]
        cells += [_number(entry["result"].get(name), digits) for _, name, digits in _COLUMNS]
        quality = entry["quality"] or {}
        cells += [_estimate(quality.get(name), digits) for _, name, digits in _QUALITY]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _ratios(entries: list[dict[str, Any]]) -> list[str]:
    """Ours over the peer's, for each step that both ran."""
    ours = {e["point"]["label"]: e for e in entries if e["target"].startswith(_OURS)}
    lines = []
    for entry in entries:
        own = ours.get(entry["point"]["label"])
        if entry["target"].startswith(_OURS) or own is None:
            continue
        ratios = [
            f"{name} x{own['result'][name] / entry['result'][name]:.2f}"
            for name in _RATIOS
            if entry["result"].get(name) and own["result"].get(name)
        ]
        label = entry["point"]["label"]
        lines.append(f"- voxnative / {entry['target']} at {label}: {', '.join(ratios)}")
    return ["", *lines] if lines else []


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _estimate(estimate: Mapping[str, float] | None, digits: int) -> str:
    if estimate is None:
        return "-"
    low, high = (_number(estimate[key], digits) for key in ("low", "high"))
    return f"{_number(estimate['value'], digits)} [{low}, {high}]"


def _facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())
