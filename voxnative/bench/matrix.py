"""The matrix: what is measured, on which server, under which load, against which limits.

A file is a list of tests; a test is a server and a list of rows. The schema is the one that
vLLM-style nightly TTS matrices use, so that theirs run unchanged; `hardware` and `peers` are ours.
Every key is known or an error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from voxnative.bench.baseline import Baseline
from voxnative.bench.dataset import LAYOUTS, LOCALES
from voxnative.bench.errors import BenchError
from voxnative.bench.fields import Fields
from voxnative.bench.peers.spec import PeerSpec

TASKS = ("voice_clone", "default_voice", "voice_design")
PHASES = ("latency", "throughput", "stress", "quality")
BACKEND, ENDPOINT = "openai-audio-speech", "/v1/audio/speech"

# Keys of other servers' `server_params`: such a row runs against --base-url alone.
_FOREIGN = ("stage_overrides", "stage_config_name", "update", "delete", "use_omni")


@dataclass(frozen=True)
class ServerParams:
    """What is served.

    Attributes:
        model: checkpoint directory or Hugging Face id; None serves the one that ships.
        deploy: deploy file.
        flags: of the server's command line.
        foreign: keys that only another server understands.
    """

    model: str | None
    deploy: str | None
    flags: tuple[str, ...]
    foreign: tuple[str, ...]


@dataclass(frozen=True)
class LoadPoint:
    """One step of a row's sweep; one of `max_concurrency` and `request_rate` is set."""

    step: int
    num_prompts: int
    num_warmups: int
    max_concurrency: int | None = None
    request_rate: float | None = None

    @property
    def load(self) -> float:
        """Concurrency, or requests a second."""
        return float(self.max_concurrency or self.request_rate or 0)

    def __str__(self) -> str:
        if self.max_concurrency is not None:
            return f"c={self.max_concurrency}"
        return f"{self.request_rate:g}/s"


@dataclass(frozen=True)
class Row:
    """One row: a server, a dataset, a sweep of loads and their limits."""

    name: str
    test_name: str
    server: ServerParams
    hardware: tuple[str, ...]
    peers: tuple[PeerSpec, ...]
    task: str
    eval_phase: str
    enabled: bool
    layout: str
    dataset_path: str
    locale: str
    shuffle: bool
    endpoint: str
    points: tuple[LoadPoint, ...]
    burstiness: float
    seed: int
    measure_quality: bool
    percentile_metrics: tuple[str, ...]
    extra_body: Mapping[str, Any]
    baseline: Baseline


@dataclass
class _Names:
    """Gives rows names that are unique in their file."""

    seen: Counter[str] = field(default_factory=Counter)

    def take(self, name: str) -> str:
        self.seen[name] += 1
        return name if self.seen[name] == 1 else f"{name}/{self.seen[name]}"


def read_matrix(path: Path) -> list[Row]:
    """All rows of a file, also those that are not enabled.

    Raises:
        BenchError: no such file, no JSON, an unknown key or a value that is not valid.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"--matrix {path}: {error.strerror}") from error
    except ValueError as error:
        raise BenchError(f"--matrix {path} is no JSON file: {error}") from error
    if not isinstance(content, list) or not content:
        raise BenchError(f"--matrix {path}: valid: a list of tests that is not empty")
    names = _Names()
    return [row for index, test in enumerate(content) for row in _read_test(test, index, names)]


def choose_rows(rows: list[Row], patterns: list[str]) -> list[Row]:
    """The rows that names or shell patterns ask for; without any, those that are enabled.

    Raises:
        BenchError: a pattern that no row's name matches; names the rows.
    """
    if not patterns:
        return [row for row in rows if row.enabled]
    chosen = []
    for pattern in patterns:
        found = [row for row in rows if fnmatch(row.name, pattern) or row.test_name == pattern]
        if not found:
            names = ", ".join(row.name for row in rows)
            raise BenchError(f"--row {pattern}: no such row; valid: {names}, or a pattern of them")
        chosen += [row for row in found if row not in chosen]
    return chosen


def _read_test(content: Any, index: int, names: _Names) -> list[Row]:
    fields = Fields(content, f"test {index}")
    test_name = fields.required_text("test_name")
    fields.where = test_name
    fields.present("mark", "server_type", "description")  # for other runners, and for readers
    hardware = fields.value("hardware")
    hardware = [hardware] if isinstance(hardware, str) else hardware or []
    if not isinstance(hardware, list) or not all(isinstance(name, str) for name in hardware):
        raise fields.error("hardware", hardware, "a name or a list of names, as H200 or cpu")
    shared = {
        "test_name": test_name,
        "hardware": tuple(hardware),
        "server": _read_server(
            Fields(fields.mapping("server_params"), f"{test_name}.server_params")
        ),
        "peers": tuple(PeerSpec.read(peer, test_name) for peer in fields.items("peers")),
    }
    rows = fields.items("benchmark_params")
    fields.finish()
    return [_read_row(row, f"{test_name}[{i}]", shared, names) for i, row in enumerate(rows)]


def _read_server(fields: Fields) -> ServerParams:
    flags = _flags(fields.value("serve_args"), fields)
    extra = fields.items("extra_cli_args")
    if not all(isinstance(flag, str) for flag in extra):
        raise fields.error("extra_cli_args", extra, "a list of strings")
    fields.flag("trust_remote_code", False)  # nothing of ours is remote code
    params = ServerParams(
        model=fields.text("model"),
        deploy=fields.text("deploy"),
        flags=(*flags, *extra),
        foreign=fields.present(*_FOREIGN),
    )
    fields.finish()
    return params


def _flags(value: Any, fields: Fields) -> list[str]:
    """`serve_args`: flags as they are, or an object of them."""
    if value is None:
        return []
    if isinstance(value, list):
        return [str(flag) for flag in value]
    if not isinstance(value, Mapping):
        raise fields.error("serve_args", value, "a list of flags or an object")
    flags = []
    for key, setting in value.items():
        name = f"--{key.replace('_', '-')}"
        if isinstance(setting, bool):
            flags += [name] if setting else []
        elif isinstance(setting, dict | list):
            flags += [name, json.dumps(setting)]
        elif setting is not None:
            flags += [name, str(setting)]
    return flags


def _read_row(content: Any, where: str, shared: dict[str, Any], names: _Names) -> Row:
    fields = Fields(content, where)
    task = fields.choice("task", TASKS)
    phase = fields.choice("eval_phase", PHASES)
    fields.choice("backend", (BACKEND,), BACKEND)
    percentiles = fields.text("percentile_metrics", "audio_ttfp,audio_rtf") or ""
    fields.text("metric_percentiles")  # all percentiles are always reported
    fields.flag("trust_remote_code", False)
    row = Row(
        **shared,
        name=names.take(f"{shared['test_name']}/{task}/{phase}"),
        task=task,
        eval_phase=phase,
        enabled=fields.flag("enabled", True),
        layout=fields.choice("dataset_name", LAYOUTS),
        dataset_path=fields.required_text("dataset_path"),
        locale=fields.choice("seed_tts_locale", LOCALES, "en"),
        shuffle=not fields.flag("disable_shuffle", False),
        endpoint=fields.text("endpoint", ENDPOINT) or ENDPOINT,
        points=_read_points(fields),
        burstiness=fields.positive("burstiness", 1.0),
        seed=fields.whole("seed", 0) or 0,
        measure_quality=fields.flag("seed_tts_wer_eval", phase == "quality"),
        percentile_metrics=tuple(name.strip() for name in percentiles.split(",")),
        extra_body=fields.mapping("extra_body"),
        baseline=Baseline.read(fields.mapping("baseline"), f"{where}.baseline"),
    )
    fields.finish()
    return row


def _read_points(fields: Fields) -> tuple[LoadPoint, ...]:
    """The sweep: request rates first, then concurrencies, as the field's runners go."""
    n_prompts = fields.sweep("num_prompts", int)
    rates = fields.sweep("request_rate", float)
    streams = fields.sweep("max_concurrency", int)
    warmups = fields.whole("num_warmups")
    if not n_prompts:
        raise fields.error("num_prompts", None, "one or more whole numbers above 0")
    if not rates and not streams:
        raise fields.error("max_concurrency", None, "this or request_rate")
    points = []
    for values, name in ((rates, "request_rate"), (streams, "max_concurrency")):
        if not values:
            continue
        n_steps = max(len(values), len(n_prompts))
        loads = values * n_steps if len(values) == 1 else values
        prompts = n_prompts * n_steps if len(n_prompts) == 1 else n_prompts
        if len(loads) != n_steps or len(prompts) != n_steps:
            raise fields.error("num_prompts", n_prompts, f"one number, or as many as {name}")
        for step, (load, n) in enumerate(zip(loads, prompts, strict=True)):
            n_warmups = max(2, load if name == "max_concurrency" else 2)
            n_warmups = n_warmups if warmups is None else warmups
            points.append(LoadPoint(step, n, n_warmups, **{name: load}))
    return tuple(points)
