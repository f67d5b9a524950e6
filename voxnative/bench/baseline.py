"""Limits of a matrix's `baseline`, and whether a result keeps them.

A baseline is a limit: a largest value, or a least one for throughputs and scores. The schema is
the field's: metric -> number, one number a step of the sweep, or numbers by load; all of that also
below the name of a machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voxnative.bench.definitions import METRIC_NAMES, higher_is_better
from voxnative.bench.errors import BenchError


@dataclass(frozen=True)
class Verdict:
    """One limit and what was measured.

    Attributes:
        value: None where the result has no such figure; a limit without a figure is not kept.
    """

    metric: str
    limit: float
    value: float | None
    ok: bool

    def __str__(self) -> str:
        sign = ">=" if higher_is_better(self.metric) else "<="
        value = "not measured" if self.value is None else f"{self.value:.4g}"
        return f"{self.metric} {value}, limit {sign} {self.limit:g}"


@dataclass(frozen=True)
class Baseline:
    """The limits of one row.

    Attributes:
        by_hardware: machine name ("" for any) -> metric -> raw limits.
    """

    by_hardware: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, content: Mapping[str, Any], where: str) -> Baseline:
        """Read the object, strictly.

        Raises:
            BenchError: a metric that is not measured, or limits that are no numbers.
        """
        has_metrics = [key for key in content if key in METRIC_NAMES]
        if has_metrics or not all(isinstance(value, Mapping) for value in content.values()):
            by_hardware: dict[str, Mapping[str, Any]] = {"": content}
        else:
            by_hardware = dict(content)
        for metrics in by_hardware.values():
            for metric, raw in metrics.items():
                if metric not in METRIC_NAMES:
                    valid = ", ".join(sorted(METRIC_NAMES))
                    raise BenchError(f"{where}: unknown metric {metric}; valid: {valid}")
                if not _are_limits(raw):
                    raise BenchError(
                        f"{where}: {metric}: {raw!r} is not valid; valid: a number, a list of"
                        " numbers, or numbers by load"
                    )
        return cls(by_hardware)

    def limits(self, machine: str, step: int, load: float) -> dict[str, float]:
        """The limits of one step of the sweep on one machine; empty where there are none.

        Args:
            machine: what runs, "NVIDIA H200" or "cpu".
            step: index in the sweep.
            load: the step's concurrency or request rate.

        Raises:
            BenchError: a list or an object of limits has none for the step.
        """
        found: dict[str, float] = {}
        for name, metrics in self.by_hardware.items():
            if name and not runs_on(name, machine):
                continue
            for metric, raw in metrics.items():
                found[metric] = _pick(metric, raw, step, load)
        return found


def runs_on(name: str, machine: str) -> bool:
    """Whether a matrix's name of hardware means the machine: "H200" is in "NVIDIA H200"."""
    return name.lower() in machine.lower().replace("-", " ").split() or name == machine


def judge(limits: Mapping[str, float], result: Mapping[str, Any]) -> list[Verdict]:
    """Compare a result with its limits."""
    verdicts = []
    for metric, limit in limits.items():
        value = result.get(metric)
        if value is None or not math.isfinite(value):
            verdicts.append(Verdict(metric, limit, None, False))
            continue
        ok = value >= limit if higher_is_better(metric) else value <= limit
        verdicts.append(Verdict(metric, limit, float(value), ok))
    return verdicts


def _are_limits(raw: Any) -> bool:
    values = raw.values() if isinstance(raw, Mapping) else raw if isinstance(raw, list) else [raw]
    return all(type(value) in (int, float) and math.isfinite(value) for value in values)


def _pick(metric: str, raw: Any, step: int, load: float) -> float:
    if isinstance(raw, list):
        if step >= len(raw):
            raise BenchError(f"baseline {metric}: {len(raw)} limits, but none for step {step}")
        return float(raw[step])
    if isinstance(raw, Mapping):
        for key, limit in raw.items():
            if float(key) == load:
                return float(limit)
        raise BenchError(f"baseline {metric}: no limit for load {load:g}; it has {', '.join(raw)}")
    return float(raw)
