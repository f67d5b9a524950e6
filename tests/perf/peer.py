"""The peer's figures from the same job: nano-vllm-voxcpm, where it is installed.

It asks for flash_attn and librosa. Where they are missing, the modules in `stand_ins` take their
place: flash_attn's three functions on vLLM's FlashAttention kernels, librosa empty (it is only
used to read recordings). The report names them.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.perf.load import TEXT, StartStream, summary, together
from tests.perf.serving_load import speed

STAND_INS = Path(__file__).parent / "stand_ins"
PACKAGE = "nanovllm_voxcpm"


def is_installed() -> bool:
    return importlib.util.find_spec(PACKAGE) is not None


def use_stand_ins() -> list[str]:
    """Put stand-ins of missing modules on the path, for this process and its children."""
    import os

    missing = [name for name in ("flash_attn", "librosa") if importlib.util.find_spec(name) is None]
    for name in missing:
        sys.path.append(str(STAND_INS / name))
        paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, str(STAND_INS / name)])
    return missing


async def peer_report(
    checkpoint: Path, *, concurrencies: list[int], n_patches: int, n_repeats: int, rate_hz: int
) -> dict[str, Any]:
    """The same streams as ours, through the peer's own server."""
    missing = use_stand_ins()
    from nanovllm_voxcpm import VoxCPM

    started = time.perf_counter()
    server = VoxCPM.from_pretrained(
        str(checkpoint), inference_timesteps=10, max_num_seqs=max(concurrencies)
    )
    await server.wait_for_ready()
    ready_s = time.perf_counter() - started

    def stream_of(n: int) -> StartStream:
        async def start(seed: int) -> AsyncIterator[int]:
            arguments = {"max_generate_length": n, "cfg_value": 2.0, "temperature": 1.0}
            async for wave in server.generate(target_text=TEXT, seed=seed, **arguments):
                yield len(wave)

        return start

    for n_streams in sorted({1, *concurrencies}):
        print("peer warm-up", summary(await together(stream_of(8), n_streams), rate_hz), flush=True)
    results = await speed(stream_of(n_patches), rate_hz, concurrencies, n_repeats)
    await server.stop()
    return {
        "peer": f"nano-vllm-voxcpm {version('nano-vllm-voxcpm')}",
        "stand_ins": missing,
        "ready_s": round(ready_s, 1),
        "together": results,
    }
