"""Pictures of a report: first audio and throughput against load, distribution of RTF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from voxnative.errors import MissingExtraError

Entries = list[dict[str, Any]]
_LINES = ("median", "p90", "p99")


def draw_charts(entries: Entries, folder: Path) -> list[Path]:
    """Write the pictures that the entries give something to show for; returns the files.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(error.name or "matplotlib", "bench") from error
    drawn = []
    for name, draw in (
        ("latency.png", _draw_latency),
        ("throughput.png", _draw_throughput),
        ("rtf.png", _draw_rtf),
    ):
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        if draw(figure.add_subplot(), entries):
            path = folder / name
            figure.savefig(path, dpi=110)
            drawn.append(path)
    return drawn


def _sweeps(entries: Entries) -> dict[str, Entries]:
    """Entries of closed loops by task and target, by rising concurrency."""
    found: dict[str, Entries] = {}
    for entry in entries:
        if entry["point"]["max_concurrency"] and entry["result"]["completed"]:
            found.setdefault(f"{entry['task']}, {entry['target']}", []).append(entry)
    for sweep in found.values():
        sweep.sort(key=lambda entry: entry["point"]["max_concurrency"])
    return found


def _draw_latency(axes: Any, entries: Entries) -> bool:
    sweeps = _sweeps(entries)
    for color, (name, sweep) in enumerate(sweeps.items()):
        streams = [entry["point"]["max_concurrency"] for entry in sweep]
        for statistic, style in zip(_LINES, ("-", "--", ":"), strict=True):
            values = [entry["result"][f"{statistic}_audio_ttfp_ms"] for entry in sweep]
            label = f"{name}, {statistic}"
            axes.plot(streams, values, style, marker="o", color=f"C{color}", label=label)
    _mark_streams(axes, sweeps)
    _finish(axes, "requests at once", "time to first audio, ms", sweeps)
    return bool(sweeps)


def _draw_throughput(axes: Any, entries: Entries) -> bool:
    sweeps = _sweeps(entries)
    for name, sweep in sweeps.items():
        streams = [entry["point"]["max_concurrency"] for entry in sweep]
        values = [entry["result"]["audio_throughput"] for entry in sweep]
        axes.plot(streams, values, marker="o", label=name)
    _mark_streams(axes, sweeps)
    _finish(axes, "requests at once", "seconds of audio a second", sweeps)
    return bool(sweeps)


def _draw_rtf(axes: Any, entries: Entries) -> bool:
    shown = [entry for entry in entries if entry["requests"]["audio_rtf"]]
    for entry in shown:
        values = np.sort(entry["requests"]["audio_rtf"])
        share = np.arange(1, len(values) + 1) / len(values)
        label = f"{entry['task']}, {entry['target']}, {entry['point']['label']}"
        axes.step(values, share, where="post", label=label)
    axes.axvline(1.0, color="0.6", linewidth=1)
    _finish(axes, "RTF of a request (left of the line: faster than speech)", "share", shown)
    return bool(shown)


def _mark_streams(axes: Any, sweeps: dict[str, Entries]) -> None:
    """Name the loads that were measured, and no others."""
    streams = {e["point"]["max_concurrency"] for sweep in sweeps.values() for e in sweep}
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(streams), [str(n) for n in sorted(streams)])


def _finish(axes: Any, x: str, y: str, shown: Any) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if shown:
        axes.legend(fontsize=7)
