"""What every figure means, in one place: the report prints these lines."""

from __future__ import annotations

# name of the figure's family -> (unit, meaning). The families are those that vLLM-style benchmark
# results use, so that dashboards for such results read ours.
FAMILIES: dict[str, tuple[str, str]] = {
    "audio_ttfp": ("ms", "TTFA: from the request sent to its first audio byte received"),
    "ttft": ("ms", "the same as audio_ttfp: the first output of a speech endpoint is audio"),
    "e2el": ("ms", "from the request sent to its last byte received"),
    "audio_rtf": ("", "RTF of a request: e2el / seconds of its audio; below 1 beats real time"),
    "audio_duration": ("s", "audio of a request"),
    "chunk_gap": ("ms", "between two pieces of audio of one request as they are received"),
    "underruns": (
        "",
        "pieces a request received after a player that began with the first one ran dry",
    ),
}

WHOLE_RUN: dict[str, tuple[str, str]] = {
    "audio_throughput": ("x", "seconds of audio of all requests / wall seconds of the run"),
    "request_throughput": ("1/s", "requests completed / wall seconds of the run"),
    "duration": ("s", "wall time of the run: first request sent to last byte received"),
    "completed": ("", "requests answered in full"),
    "failed": ("", "requests refused, broken off or without audio"),
    "start_s": ("s", "a server: launch to first healthy answer; a library: its loading alone"),
    "rss_peak_mb": ("MB", "largest resident memory of the server's processes, summed"),
    "gpu_peak_mb": ("MB", "largest memory in use on the GPUs, by nvidia-smi"),
}

QUALITY: dict[str, tuple[str, str]] = {
    "wer_percent": (
        "%",
        "word error rate: edits / words of the texts, after whisper's English normaliser, as"
        " heard by whisper tiny.en (beam 5, temperature 0)",
    ),
    "speaker_similarity": (
        "",
        "cosine of Resemblyzer's voice embeddings of the reference and of the speech",
    ),
    "dnsmos_ovrl": ("", "DNSMOS P.835, overall: predicted opinion from 1 to 5"),
}

STATISTICS = ("mean", "median", "p50", "p90", "p95", "p99")
_HIGHER_IS_BETTER = {
    "audio_throughput",
    "request_throughput",
    "completed",
    "speaker_similarity",
    "dnsmos_ovrl",
    "rtfx",
}


def result_name(statistic: str, family: str) -> str:
    """The name of a figure in results and baselines: "median_audio_ttfp_ms"."""
    unit = FAMILIES[family][0]
    return f"{statistic}_{family}" + (f"_{unit}" if unit else "")


METRIC_NAMES = frozenset(
    {result_name(statistic, family) for statistic in STATISTICS for family in FAMILIES}
    | set(WHOLE_RUN)
    | set(QUALITY)
    | {"rtfx", "total_audio_duration_s"}
)


def higher_is_better(metric: str) -> bool:
    """Whether a baseline is a least value; otherwise it is a largest one."""
    return metric in _HIGHER_IS_BETTER


def as_lines() -> list[str]:
    """All definitions, one a line."""
    return [
        f"`{name}`{f' [{unit}]' if unit else ''}: {meaning}."
        for name, (unit, meaning) in (FAMILIES | WHOLE_RUN | QUALITY).items()
    ]
