"""What the machine can do at best, measured: copy bandwidth and matrix multiplication.

`python -m voxnative.bench.machine_rates` prints both as JSON; a benchmark asks it in a process of
its own, which leaves neither memory on the GPU nor torch in the client.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

_COPY_BYTES = {"cpu": 256 * 2**20, "cuda": 4 * 2**30}
_SIDE = {"cpu": 1024, "cuda": 8192}
_REPEATS = {"cpu": 5, "cuda": 30}


def measure_rates(device: str, dtype: str, n_threads: int | None = None) -> dict[str, Any]:
    """Measure in this process.

    Args:
        device: "cpu" or "cuda".
        dtype: of the matrices: "float32", "bfloat16" or "float16".
        n_threads: of a CPU; torch's own number when None.

    Returns:
        ``copy_gb_s`` (bytes read and written, in 10**9 a second), ``matmul_tflop_s`` of square
        matrices, and what they were measured with. The best of the repeats counts.
    """
    import torch

    threads_before = torch.get_num_threads()
    if n_threads is not None:
        torch.set_num_threads(n_threads)
    try:
        n = _COPY_BYTES[device] // 4
        source = torch.ones(n, device=device)
        target = torch.empty_like(source)
        copy_s = _best_s(lambda: target.copy_(source), device)
        side = _SIDE[device]
        a, b = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in "ab")
        out = torch.empty_like(a)
        matmul_s = _best_s(lambda: torch.matmul(a, b, out=out), device)
        return {
            "device": device,
            "dtype": dtype,
            "threads": torch.get_num_threads() if device == "cpu" else None,
            "copy_gb_s": 2 * _COPY_BYTES[device] / copy_s / 1e9,
            "matmul_tflop_s": 2 * side**3 / matmul_s / 1e12,
            "matmul_side": side,
        }
    finally:
        torch.set_num_threads(threads_before)


def measured_elsewhere() -> dict[str, Any]:
    """The rates of this machine's GPU, or of its CPU, from a process that ends."""
    command = [sys.executable, "-m", "voxnative.bench.machine_rates"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _best_s(work: Callable[[], Any], device: str) -> float:
    import torch

    best = float("inf")
    for repeat in range(_REPEATS[device] + 1):
        started = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        if repeat:  # the first one allocates and compiles
            best = min(best, time.perf_counter() - started)
    return best


def main() -> None:
    """Print the rates of the first GPU, in bfloat16, or of the CPU, in float32."""
    import torch

    on_gpu = torch.cuda.is_available()
    print(json.dumps(measure_rates(*(("cuda", "bfloat16") if on_gpu else ("cpu", "float32")))))


if __name__ == "__main__":
    main()
