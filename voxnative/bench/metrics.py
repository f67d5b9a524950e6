"""Records of a run -> figures, under the names that `definitions.py` explains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from voxnative.bench.definitions import FAMILIES, STATISTICS, result_name
from voxnative.bench.record import RequestRecord


def summarise(records: Sequence[RequestRecord], wall_s: float) -> dict[str, Any]:
    """Figures of one run.

    Args:
        records: all of its requests.
        wall_s: first request sent to last byte received.

    Returns:
        Metric name -> value; percentiles are absent where no request was answered.
    """
    good = [record for record in records if record.error is None]
    audio_s = sum(record.audio_s for record in good)
    result: dict[str, Any] = {
        "num_prompts": len(records),
        "completed": len(good),
        "failed": len(records) - len(good),
        "duration": wall_s,
        "total_audio_duration_s": audio_s,
        "audio_throughput": audio_s / wall_s,
        "rtfx": audio_s / wall_s,
        "request_throughput": len(good) / wall_s,
    }
    for family, values in _families(good).items():
        if values:
            result |= _statistics(family, values)
    return result


def _families(good: Sequence[RequestRecord]) -> dict[str, list[float]]:
    """Every value of each family, in the family's unit."""
    ttfa_ms = [1000 * record.ttfa_s for record in good]
    values = {
        "audio_ttfp": ttfa_ms,
        "ttft": ttfa_ms,
        "e2el": [1000 * record.ended_s for record in good],
        "audio_rtf": [record.rtf for record in good],
        "audio_duration": [record.audio_s for record in good],
        "chunk_gap": [1000 * gap_s for record in good for gap_s in record.gaps_s],
        "underruns": [float(record.n_underruns) for record in good],
    }
    assert values.keys() == FAMILIES.keys()
    return values


def _statistics(family: str, values: list[float]) -> dict[str, float]:
    found = {}
    for statistic in STATISTICS:
        if statistic == "mean":
            value = float(np.mean(values))
        else:
            share = 50.0 if statistic == "median" else float(statistic[1:])
            value = float(np.percentile(values, share))
        found[result_name(statistic, family)] = value
    return found
