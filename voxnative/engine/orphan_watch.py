"""Ends an engine whose front end died without saying goodbye."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

POLL_S = 2.0
COORDINATOR = "VLLM::DPCoordin"  # "DPCoordinator", in the 15 characters that the kernel keeps


def end_with_front_end(engine: int) -> None:
    """Watch the front end from a worker, and end the engine when it is gone.

    vLLM's worker ends with its engine process, but that one outlives a front end that was
    killed, with all of its memory. The engine's parent is the front end; a child whose parent
    dies is given to another process, so the engine's parent then changes.

    Args:
        engine: process id of the engine: the worker's own, or its parent's.
    """
    front_end = _parent_of(engine)
    threading.Thread(target=_watch, args=(engine, front_end), daemon=True).start()


def _watch(engine: int, front_end: int | None) -> None:
    coordinator = _coordinator_of(front_end)
    while front_end is not None and _parent_of(engine) == front_end:
        time.sleep(POLL_S)
    if _parent_of(engine) is not None:  # else it has ended by itself, and vLLM ends us
        _kill(engine)
    if coordinator is None or _status(coordinator, "Name") != COORDINATOR:
        return
    if _parent_of(coordinator) != front_end:
        _kill(coordinator)


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):  # another worker's watch was faster
        os.kill(process, signal.SIGKILL)


def _coordinator_of(front_end: int | None) -> int | None:
    """The process that balances the load of data-parallel replicas, where there is one."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _status(int(folder.name), "Name") == COORDINATOR:
            process = int(folder.name)
            if _parent_of(process) == front_end:
                return process
    return None


def _parent_of(process: int) -> int | None:
    """Parent's id, None where there is no such process."""
    parent = _status(process, "PPid")
    return None if parent is None else int(parent)


def _status(process: int, key: str) -> str | None:
    """One line of what the kernel says of a process, None where there is no such process."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    (value,) = [line.split(":", 1)[1] for line in lines if line.startswith(f"{key}:")]
    return value.strip()
