"""Ends an engine whose front end died without saying goodbye."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

POLL_S = 2.0


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
    while front_end is not None and _parent_of(engine) == front_end:
        time.sleep(POLL_S)
    if _parent_of(engine) is not None:  # else it has ended by itself, and vLLM ends us
        os.kill(engine, signal.SIGKILL)


def _parent_of(process: int) -> int | None:
    """Parent's id, None where there is no such process."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    (line,) = [line for line in status.splitlines() if line.startswith("PPid:")]
    return int(line.split()[1])
