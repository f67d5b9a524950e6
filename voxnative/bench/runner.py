"""All chosen rows: on our server or engine first, then on their peers, one after the other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxnative.bench.dataset import Item, read_dataset
from voxnative.bench.engine_target import EngineTarget, offline_settings
from voxnative.bench.errors import BenchError
from voxnative.bench.http_target import HttpTarget
from voxnative.bench.kept_audio import AudioKeeper
from voxnative.bench.matrix import LoadPoint, Row, ServerParams
from voxnative.bench.paths import find_dataset, shown_model
from voxnative.bench.peers.library import open_peer, why_not
from voxnative.bench.peers.spec import PeerSpec
from voxnative.bench.quality import QualityJudge
from voxnative.bench.run_point import add_verdicts, run_point
from voxnative.bench.server_process import ServerProcess, model_of, serve_command, served_facts
from voxnative.bench.target import Target
from voxnative.errors import VoxNativeError

Entries = list[dict[str, Any]]
OURS = "voxnative"

# A peer is a guest: what it cannot do is reported, and the rest goes on.
GUESTS_ERRORS = (VoxNativeError, ImportError, RuntimeError, OSError, ValueError)


@dataclass(frozen=True)
class RunOptions:
    """What the command line says.

    Attributes:
        mode: "serve" or "offline".
        matrix: the file that the rows come from; its paths are looked for around it.
        machine: this machine's name, for `hardware` and baselines.
        out: folder of the report.
        base_url: a server that runs already; None starts one a group of rows.
        api_key: of that server.
        dataset: replaces every row's `dataset_path`.
        quality: "now", "later" (the speech is kept beside the report) or "none".
        n_quality: answers a step that are scored.
        only: names of the targets that run; empty for all.
    """

    mode: str
    matrix: Path
    machine: str
    out: Path
    base_url: str | None = None
    api_key: str | None = None
    dataset: Path | None = None
    quality: str = "now"
    n_quality: int = 16
    only: tuple[str, ...] = ()

    def wants(self, target: str) -> bool:
        """Whether a target is to run."""
        return not self.only or target in self.only


class Runner:
    """Runs rows and collects the entries of their report.

    Args:
        options: what the command line says.
        rows: what to run.
        on_row: called after each row of each target, when what was found so far can be kept.
    """

    def __init__(
        self, options: RunOptions, rows: list[Row], on_row: Callable[[], Any] = lambda: None
    ) -> None:
        self.options = options
        self._on_row = on_row
        self.rows = rows
        self.entries: Entries = []
        self.not_run: list[dict[str, str]] = []
        self.targets: dict[str, Any] = {}
        named = {OURS} | {spec.name for row in rows for spec in row.peers}
        for name in options.only:
            if name not in named:
                raise BenchError(f"--only {name}: valid: {', '.join(sorted(named))}")
        self._items: dict[tuple[str, str, str], list[Item]] = {}
        for row in rows:  # everything that can be wrong is found before an engine starts
            self._items_of(row)
            if options.mode == "serve" and options.base_url is None:
                serve_command(row.server, options.matrix)
            elif options.mode == "offline":
                offline_settings(row.server, options.matrix)
        self._quality = _quality(options)

    def run(self) -> None:
        """Run everything.

        Raises:
            BenchError: a server did not start.
        """
        groups: dict[ServerParams, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.server, []).append(row)
        for params, rows in groups.items():
            if self.options.wants(OURS):
                if self.options.mode == "offline":
                    asyncio.run(self._run_offline(params, rows))
                else:
                    self._run_server(params, rows)
            self._run_peers(rows, model_of(params, self.options.matrix))

    def found(self) -> dict[str, Any]:
        """What a report holds of the run so far."""
        return {"entries": self.entries, "not_run": self.not_run, "targets": self.targets}

    def _run_server(self, params: ServerParams, rows: list[Row]) -> None:
        options = self.options
        with ExitStack() as stack:
            server, url = None, options.base_url
            if url is None:
                log = options.out / f"server-{rows[0].test_name}.log"
                sys.stderr.write(f"starting the server; its log: {log}\n")
                server = stack.enter_context(
                    ServerProcess(serve_command(params, options.matrix), log)
                )
                url = server.base_url
            asyncio.run(self._run_rows_over_http(url, rows, server))

    async def _run_rows_over_http(
        self, url: str, rows: list[Row], server: ServerProcess | None
    ) -> None:
        for row in rows:
            target = HttpTarget(OURS, url, row.endpoint, api_key=self.options.api_key)
            facts = served_facts(row.server, self.options.matrix) if server else target.facts()
            async with target:
                await self._run_row(target, row, facts, is_ours=True)
            if server is not None:
                for entry in self.entries:
                    if entry["row"] == row.name and entry["target"] == OURS:
                        entry["result"] |= {"start_s": server.start_s, **server.memory.peaks()}
            self._on_row()

    async def _run_offline(self, params: ServerParams, rows: list[Row]) -> None:
        settings = offline_settings(params, self.options.matrix)
        async with EngineTarget(model_of(params, self.options.matrix), settings) as target:
            for row in rows:
                await self._run_row(target, row, target.facts(), is_ours=True)
                for entry in self.entries:
                    entry["result"].setdefault("start_s", target.start_s)
                self._on_row()

    def _run_peers(self, rows: list[Row], model: str) -> None:
        """Each peer once for all rows that name it; a server is another target for each row."""
        specs: list[PeerSpec] = []
        for row in rows:
            new = [spec for spec in row.peers if spec not in specs]
            specs += [spec for spec in new if self.options.wants(spec.name)]
        for spec in specs:
            its_rows = [row for row in rows if spec in row.peers]
            is_server = spec.kind == "openai"
            for group in [[row] for row in its_rows] if is_server else [its_rows]:
                reason = why_not(spec)
                if reason is None:
                    try:
                        asyncio.run(
                            self._run_peer(
                                open_peer(spec, group[0], model, self.options.matrix), group
                            )
                        )
                    except GUESTS_ERRORS as error:
                        reason = _told(error)
                if reason is not None:
                    self._not_run([row for row in group if not self._has(row, spec)], spec, reason)
                self._on_row()

    async def _run_peer(self, target: Target, rows: list[Row]) -> None:
        async with target:
            for row in rows:
                before = len(self.entries)
                try:
                    await self._run_row(target, row, target.facts(), is_ours=False)
                except GUESTS_ERRORS as error:
                    why = _told(error)
                    self.not_run.append({"row": row.name, "target": target.name, "why": why})
                start_s = getattr(target, "start_s", None)
                if start_s is not None:
                    for entry in self.entries[before:]:
                        entry["result"]["start_s"] = start_s
                self._on_row()

    def _not_run(self, rows: list[Row], spec: PeerSpec, why: str) -> None:
        self.not_run += [{"row": row.name, "target": spec.name, "why": why} for row in rows]

    def _has(self, row: Row, spec: PeerSpec) -> bool:
        """Whether the report says something of a peer on a row already."""
        return any(
            found["row"].split(" ")[0] == row.name and found["target"] == spec.name
            for found in (*self.entries, *self.not_run)
        )

    async def _run_row(
        self, target: Target, row: Row, facts: dict[str, Any], *, is_ours: bool
    ) -> None:
        options = self.options
        for point in row.points:
            if not _fits(target, point):
                why = f"it speaks {target.max_streams} at once, {point} asks for more"
                name = f"{row.name} {point}"
                self.not_run.append({"row": name, "target": target.name, "why": why})
                continue
            entry = await run_point(
                target, row, point, self._items_of(row), self._quality, options.n_quality
            )
            if options.base_url is None:
                entry["model"] = shown_model(model_of(row.server, options.matrix))
            if is_ours:
                add_verdicts(entry, row, point, options.machine)
            self.entries.append(entry)
        known = self.targets.setdefault(target.name, facts)
        if known != facts:  # the same target on another server or checkpoint
            self.targets[f"{target.name} ({row.test_name})"] = facts

    def _items_of(self, row: Row) -> list[Item]:
        key = (row.dataset_path, row.layout, row.locale)
        if key not in self._items:
            given = self.options.dataset
            root = given or find_dataset(row.dataset_path, row.locale, self.options.matrix)
            self._items[key] = read_dataset(root, row.layout, row.locale)
        return self._items[key]


def _quality(options: RunOptions) -> QualityJudge | AudioKeeper | None:
    if options.quality == "later":
        return AudioKeeper(options.out)
    return QualityJudge() if options.quality == "now" else None


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[-300:]}"


def _fits(target: Target, point: LoadPoint) -> bool:
    if target.max_streams is None:
        return True
    return point.max_concurrency is not None and point.max_concurrency <= target.max_streams
