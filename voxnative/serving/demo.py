"""``voxnative demo``: a page to type, listen and try voices, and a server where none runs."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx

from voxnative.errors import EngineError, MissingExtraError, VoxNativeError

EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 130, 143
API_KEY_VARIABLE = "VOXNATIVE_API_KEY"
START_S = 600.0
_STOP_S = 30.0


def main(arguments: Sequence[str]) -> int:
    """Show the page until a signal comes; returns the exit code."""
    args = _parser().parse_args(arguments)
    # Without a handler the signal would end this process and leave its server behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    try:
        with _server(args.server, args.model) as address:
            _show(address, args.host, args.port)
    except VoxNativeError as error:
        sys.stderr.write(f"voxnative demo: {error}\n")
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="voxnative demo", description=main.__doc__)
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="checkpoint to serve (default: the shipped one)")
    add("--server", help="address of a running server; none is started then")
    add("--host", default="127.0.0.1", help="where the page listens (default: %(default)s)")
    add("--port", type=int, default=7860, help="default: %(default)s")
    parser.epilog = f"A server that asks for a key gets the one in ${API_KEY_VARIABLE}."
    return parser


def _show(address: str, host: str, port: int) -> None:
    try:
        import uvicorn

        from voxnative.serving.demo_page import build_app
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "demo") from error
    app = build_app(address, os.environ.get(API_KEY_VARIABLE))
    print(f"The page is at http://{host}:{port}", flush=True)
    uvicorn.run(app, host=host, port=port, log_level="warning")


@contextmanager
def _server(address: str | None, model: str | None) -> Iterator[str]:
    """The address of a server: the given one, or one that lives as long as the page."""
    if address is not None:
        yield address.rstrip("/")
        return
    port = _free_port()
    command = [sys.executable, "-m", "voxnative.cli", "serve", *([model] if model else [])]
    print("Starting the server; this takes a minute.", flush=True)
    process = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)])
    try:
        _wait_until_healthy(process, f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_until_healthy(process: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise EngineError(f"the server ended with exit code {process.returncode}")
        try:
            if httpx.get(f"{address}/health", timeout=5.0).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise EngineError(f"the server was not ready after {START_S:g} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
