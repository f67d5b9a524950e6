"""What ran on a device, in a few figures."""

from __future__ import annotations

from typing import Any


def timeline(spans: list[tuple[float, float, str]]) -> dict[str, Any]:
    """Summary of what ran on a device.

    Args:
        spans: begin and end in microseconds, and name, of each kernel and copy.
    """
    if not spans:
        return {"kernels": 0}
    busy_us, covered = 0.0, float("-inf")
    by_name: dict[str, list[float]] = {}
    for begin, end, name in sorted(spans):
        busy_us += max(0.0, end - max(begin, covered))
        covered = max(covered, end)
        by_name.setdefault(name[:80], []).append(end - begin)
    span_us = covered - min(begin for begin, _, _ in spans)
    largest = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:25]
    return {
        "kernels": len(spans),
        "span_ms": round(span_us / 1000, 2),
        "busy_share": round(busy_us / span_us, 4),
        "largest": [
            {"name": name, "calls": len(times), "ms": round(sum(times) / 1000, 3)}
            for name, times in largest
        ],
    }
