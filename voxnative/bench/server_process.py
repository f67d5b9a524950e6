"""A server of our own for the rows of a matrix: started, watched and stopped."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from voxnative.bench.errors import BenchError
from voxnative.bench.matrix import ServerParams
from voxnative.bench.memory import MemoryWatch
from voxnative.bench.paths import find_path, shown_model

START_TIMEOUT_S = 1800.0
STOP_TIMEOUT_S = 60.0
_POLL_S = 0.25
_LOG_TAIL_LINES = 30


def serve_command(params: ServerParams, matrix: Path) -> list[str]:
    """``voxnative serve`` of a row, without host and port.

    Raises:
        BenchError: the row is for another server, or a file of it is not there.
    """
    if params.foreign:
        raise BenchError(
            f"server_params {', '.join(params.foreign)} belong to another server; start that one"
            " and give --base-url URL"
        )
    command = [sys.executable, "-m", "voxnative.cli", "serve"]
    if params.model is not None:
        command.append(model_of(params, matrix))
    if params.deploy is not None:
        deploy = find_path(params.deploy, matrix)
        if deploy is None:
            raise BenchError(f"server_params deploy: no file {params.deploy}")
        command += ["--deploy", str(deploy)]
    return [*command, *params.flags]


def model_of(params: ServerParams, matrix: Path) -> str:
    """The checkpoint of a row: a directory here, or a Hugging Face id as it is."""
    from voxnative.async_api import SHIPPED_CHECKPOINT

    if params.model is None:
        return str(SHIPPED_CHECKPOINT)
    found = find_path(params.model, matrix)
    return params.model if found is None else str(found)


def served_facts(params: ServerParams, matrix: Path) -> dict[str, Any]:
    """A server of our own, for the report: what it serves and how."""
    found: dict[str, Any] = {"model": shown_model(model_of(params, matrix))}
    if params.deploy is not None:
        found["deploy"] = params.deploy
    if params.flags:
        found["flags"] = " ".join(params.flags)
    return found


class ServerProcess:
    """``voxnative serve`` in a process of its own; a context manager.

    Args:
        command: without host and port.
        log: file for everything that it prints.
    """

    def __init__(self, command: list[str], log: Path) -> None:
        self.port = _free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.start_s = 0.0
        self._command = [*command, "--host", "127.0.0.1", "--port", str(self.port)]
        self._log = log

    def __enter__(self) -> Self:
        """Start it and wait until it is healthy.

        Raises:
            BenchError: it ended or did not become healthy; with the end of its log.
        """
        started = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.memory = MemoryWatch(self._process.pid)
        try:
            self._wait_until_healthy(started + START_TIMEOUT_S)
        except BaseException:
            self._stop()
            raise
        self.start_s = time.perf_counter() - started
        self.memory.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.memory.stop()
        self._stop()

    def _wait_until_healthy(self, deadline: float) -> None:
        while time.perf_counter() < deadline:
            if self._process.poll() is not None:
                raise BenchError(
                    f"the server ended with code {self._process.returncode}:\n{self._log_tail()}"
                )
            try:
                answer = httpx.get(f"{self.base_url}/health", timeout=5, trust_env=False)
                if answer.status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            time.sleep(_POLL_S)
        raise BenchError(f"no healthy server after {START_TIMEOUT_S:g} s:\n{self._log_tail()}")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
