"""All chosen rows: on our server or engine first, then on their peers, one after the other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxnative.bench.dataset import Item, read_dataset
from voxnative.bench.errors import BenchError
from voxnative.bench.http_target import HttpTarget
from voxnative.bench.matrix import LoadPoint, Row, ServerParams
from voxnative.bench.paths import find_dataset, find_path
from voxnative.bench.peers.library import open_peer, why_not
from voxnative.bench.quality import QualityJudge
from voxnative.bench.run_point import add_verdicts, run_point
from voxnative.bench.server_process import ServerProcess, model_of, serve_command
from voxnative.bench.target import Target
from voxnative.errors import VoxNativeError

Entries = list[dict[str, Any]]


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
        with_quality: score the speech.
        n_quality: answers a step that are scored.
        with_peers: run the rows' peers.
    """

    mode: str
    matrix: Path
    machine: str
    out: Path
    base_url: str | None = None
    api_key: str | None = None
    dataset: Path | None = None
    with_quality: bool = True
    n_quality: int = 16
    with_peers: bool = True


class Runner:
    """Runs rows and collects the entries of their report."""

    def __init__(self, options: RunOptions, rows: list[Row]) -> None:
        self.options = options
        self.rows = rows
        self.entries: Entries = []
        self.not_run: list[dict[str, str]] = []
        self.targets: dict[str, Any] = {}
        self._items: dict[tuple[str, str, str], list[Item]] = {}
        for row in rows:  # everything that can be wrong is found before an engine starts
            self._items_of(row)
            if options.mode == "serve" and options.base_url is None:
                serve_command(row.server, options.matrix)
            elif options.mode == "offline":
                offline_settings(row.server, options.matrix)
        self._quality = QualityJudge() if options.with_quality else None

    def run(self) -> None:
        """Run everything.

        Raises:
            BenchError: a server did not start.
        """
        groups: dict[ServerParams, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.server, []).append(row)
        for params, rows in groups.items():
            if self.options.mode == "offline":
                asyncio.run(self._run_offline(params, rows))
            else:
                self._run_server(params, rows)
            if self.options.with_peers:
                self._run_peers(rows)

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
            before = len(self.entries)
            asyncio.run(self._run_rows_over_http(url, rows))
            if server is not None:
                facts = {"start_s": server.start_s, **server.memory.peaks()}
                for entry in self.entries[before:]:
                    entry["result"] |= facts

    async def _run_rows_over_http(self, url: str, rows: list[Row]) -> None:
        for row in rows:
            target = HttpTarget("voxnative", url, row.endpoint, api_key=self.options.api_key)
            async with target:
                await self._run_row(target, row, is_ours=True)

    async def _run_offline(self, params: ServerParams, rows: list[Row]) -> None:
        from voxnative.bench.engine_target import EngineTarget

        settings = offline_settings(params, self.options.matrix)
        async with EngineTarget(model_of(params, self.options.matrix), settings) as target:
            for row in rows:
                await self._run_row(target, row, is_ours=True)
        for entry in self.entries:
            entry["result"].setdefault("start_s", target.start_s)

    def _run_peers(self, rows: list[Row]) -> None:
        for row in rows:
            for spec in row.peers:
                reason = why_not(spec)
                if reason is None:
                    try:
                        target = open_peer(spec, row, model_of(row.server, self.options.matrix))
                        asyncio.run(self._run_peer(target, row))
                    # A peer is a guest: what it cannot do is reported, and the rest goes on.
                    except (
                        VoxNativeError,
                        ImportError,
                        RuntimeError,
                        OSError,
                        ValueError,
                    ) as error:
                        reason = f"{type(error).__name__}: {str(error)[-300:]}"
                if reason is not None:
                    self.not_run.append({"row": row.name, "target": spec.name, "why": reason})

    async def _run_peer(self, target: Target, row: Row) -> None:
        async with target:
            before = len(self.entries)
            await self._run_row(target, row, is_ours=False)
            start_s = getattr(target, "start_s", None)
            if start_s is not None:
                for entry in self.entries[before:]:
                    entry["result"]["start_s"] = start_s

    async def _run_row(self, target: Target, row: Row, *, is_ours: bool) -> None:
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
            if is_ours:
                add_verdicts(entry, row, point, options.machine)
            self.entries.append(entry)
        self.targets[target.name] = target.facts()

    def _items_of(self, row: Row) -> list[Item]:
        key = (row.dataset_path, row.layout, row.locale)
        if key not in self._items:
            given = self.options.dataset
            root = given or find_dataset(row.dataset_path, row.locale, self.options.matrix)
            self._items[key] = read_dataset(root, row.layout, row.locale)
        return self._items[key]


def _fits(target: Target, point: LoadPoint) -> bool:
    if target.max_streams is None:
        return True
    return point.max_concurrency is not None and point.max_concurrency <= target.max_streams


def offline_settings(params: ServerParams, matrix: Path) -> Mapping[str, Any]:
    """A row's deploy file as arguments of `AsyncVoxNative`.

    Raises:
        BenchError: flags of a server's command line, or a file that is not there.
    """
    if params.flags or params.foreign:
        given = ", ".join([*params.foreign, *params.flags])
        raise BenchError(f"server_params {given}: not valid offline; valid: model and deploy")
    if params.deploy is None:
        return {}
    path = find_path(params.deploy, matrix)
    if path is None:
        raise BenchError(f"server_params deploy: no file {params.deploy}")
    from dataclasses import fields

    from vllm import AsyncEngineArgs

    from voxnative.serving.deploy import read_deploy

    return dict(read_deploy(path, {field.name for field in fields(AsyncEngineArgs)}).engine)
