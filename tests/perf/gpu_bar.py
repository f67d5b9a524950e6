"""What the GPU report's figures must reach, row by row."""

from __future__ import annotations

from typing import Any

COSINE = 0.9999  # of a patch made alone and among others
SNR_DB = 55  # of the AudioVAE against fp32
AMONG_OTHERS = {
    "among": "among others",
    "cramped": "among others, preempted",
    "above": "among others, above every graph",
    "lora": "among others with adapters",
}


def bar_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Ours, the peer's and their ratio, for each row of the bar that was measured."""
    ours = found.get("serve", {}).get("together", {})
    peer = found.get("peer", {}).get("together", {})

    def pick(runs: dict[str, Any], n: str, *keys: str) -> float | None:
        value: Any = runs.get(n, {})
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def peak(runs: dict[str, Any]) -> float | None:
        return max((r.get("total_real_time_factor", 0.0) for r in runs.values()), default=None)

    def capacity(runs: dict[str, Any]) -> int | None:
        in_time = [int(n) for n, r in runs.items() if r.get("late_chunks") == 0]
        return max(in_time, default=None)

    first_p99 = "ttfa_ms", "p99"
    serve = found.get("serve", {})
    rows = [
        ("RTF, one stream", "1", ("rtf_median",), 0.055, 0.030),
        ("first audio, one stream, ms", "1", ("ttfa_ms", "p50"), 30, 18),
        ("total at 64 streams", "64", ("total_real_time_factor",), 330, 600),
        ("first audio p99, 64 at once, ms", "64", first_p99, 120, 60),
    ]
    measured = [
        (name, pick(ours, n, *keys), pick(peer, n, *keys), required, aim)
        for name, n, keys, required, aim in rows
    ]
    measured += [
        ("peak total", peak(ours), peak(peer), 400, 700),
        ("first audio p99, Poisson at 70 %, ms", pick(serve, "poisson", *first_p99), None, 150, 60),
        ("most streams with every chunk in time", capacity(ours), capacity(peer), 256, 400),
    ]
    return [
        {
            "row": name,
            "ours": ours_value,
            "peer": peer_value,
            "ratio": round(ours_value / peer_value, 3) if ours_value and peer_value else None,
            "required": required,
            "aim": aim,
        }
        for name, ours_value, peer_value, required, aim in measured
    ]


def _was_compared(run: Any) -> bool:
    return isinstance(run, dict) and "among others" in run


def _isolation_rows(result: dict[str, Any] | None, name: str) -> list[tuple[str, Any, str, bool]]:
    """Rows of one run of requests alone and among others."""
    result = result or {}
    # Adapters run several times, a rank each.
    runs = {f"{name}, {rank}": r["among others"] for rank, r in result.items() if _was_compared(r)}
    runs |= {name: result} if "cosine_min" in result else {}
    rows: list[tuple[str, Any, str, bool]] = []
    for run, found in runs.items():
        for key, what in (("cosine_min", "patches"), ("hidden_cosine_min", "hidden states")):
            if key in found:
                value = found[key]
                rows.append((f"{what} {run}, cosine", value, f"> {COSINE}", value > COSINE))
        if "preemptions" in found and "preempted" in run:
            value = found["preemptions"]
            rows.append((f"preemptions {run}", value, "> 0", value > 0))
    return rows


def correctness_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Figure, limit and verdict of each claim of correctness that was measured."""
    rows: list[tuple[str, Any, str, bool]] = []
    for kernels, results in (("", found), (", batch-invariant", found.get("invariant", {}))):
        for part, name in AMONG_OTHERS.items():
            rows += _isolation_rows(results.get(part), name + kernels)
    tiny = found.get("tiny", {}).get("behaviour")
    if tiny is not None:
        same = tiny["lengths_within_a_patch"]
        rows.append(("lengths alone and in a batch within a patch", same, "true", same))
        left = len(tiny["left_over"])
        rows.append(("requests left over", left, "0", left == 0))
    for name, stages in found.get("stages", {}).items():
        value = stages["vae"]["snr_db"].get("fp16")
        if value is None:  # a trial on a CPU
            continue
        rows.append((f"AudioVAE in fp16, {name}, dB", value, f">= {SNR_DB}", value >= SNR_DB))
    keys = ("row", "value", "required", "ok")
    return [dict(zip(keys, row, strict=True)) for row in rows]
