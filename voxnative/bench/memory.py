"""Memory of a process with its children, and of the GPUs, looked at while a load runs."""

from __future__ import annotations

import shutil
import subprocess
import threading
from typing import Any

import psutil

_INTERVAL_S = 0.5
BYTES_PER_MB = 1_000_000
_MIB_IN_MB = 1.048576


class MemoryWatch:
    """Keeps the largest values seen; a thread looks every half second.

    Args:
        pid: of the process whose tree is summed.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._has_gpu = shutil.which("nvidia-smi") is not None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)
        self._rss_mb = 0.0
        self._gpu_mb: float | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._thread.join()

    def peaks(self) -> dict[str, Any]:
        """``rss_peak_mb`` and, with a GPU, ``gpu_peak_mb``, so far."""
        self._look()
        found: dict[str, Any] = {"rss_peak_mb": self._rss_mb}
        if self._gpu_mb is not None:
            found["gpu_peak_mb"] = self._gpu_mb
        return found

    def _run(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            self._look()

    def _look(self) -> None:
        rss = 0
        try:
            for process in [self._root, *self._root.children(recursive=True)]:
                try:
                    rss += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
        except psutil.NoSuchProcess:
            return
        self._rss_mb = max(self._rss_mb, rss / BYTES_PER_MB)
        if self._has_gpu:
            self._gpu_mb = max(self._gpu_mb or 0.0, _gpu_used_mb())


def _gpu_used_mb() -> float:
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    )
    return sum(float(line) for line in done.stdout.split()) * _MIB_IN_MB
