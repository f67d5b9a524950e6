"""Patches of one engine over two GPUs against those of one engine on one, from the same inputs.

    python -m tests.perf.tensor_parallel_patches --model DIR --out FILE [--dtype float32]

An engine on one device speaks a few requests and its latents are kept; then an engine over two
speaks the same requests and is fed those latents behind each step, so that a step's difference is
its own and does not grow. In float32 all products are exact (no TF32, also not in Triton's), and
what is left is the order of sums over the ranks; in bfloat16 rounding comes on top.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tests.perf.gpu_correctness import RECORDING_WORKER
from tests.perf.load import TEXT

SEEDS = range(9000, 9008)
KV_BYTES = 4_000_000_000
EXACT = {"kernels": False, "compile_solver": False, "vae_precision": "fp32"}


async def spoken(arguments: argparse.Namespace, n_ranks: int, record: Path) -> list[dict[str, Any]]:
    """Speak the requests on so many devices; of each rank, how its patches compare."""
    from voxnative.async_api import AsyncVoxNative

    options = EXACT if arguments.dtype == "float32" else {}
    async with AsyncVoxNative(
        arguments.model,
        dtype=arguments.dtype,
        max_num_seqs=8,
        max_model_len=512,
        kv_cache_memory_bytes=KV_BYTES,
        tensor_parallel_size=n_ranks,
        worker_cls=RECORDING_WORKER,
        additional_config={"voxnative_engine": options},
    ) as speech:
        engine = speech._engine
        if n_ranks == 1:
            await engine.collective_rpc("record", args=(False,))
        else:
            await engine.collective_rpc("feed_record", args=(str(record),))
        steps = {"max_steps": arguments.patches, "min_steps": arguments.patches - 1}
        for seed in SEEDS:
            await speech.synthesize(
                TEXT, cfg=2.0, timesteps=10, seed=seed, max_silence_s=0, **steps
            )
        if n_ranks == 1:
            await engine.collective_rpc("keep_record", args=(str(record),))
            return []
        compared: list[dict[str, Any]] = await engine.collective_rpc("compare")
        return compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--patches", type=int, default=24)
    parser.add_argument("--record", type=Path, help="kept by an earlier run with --only-one")
    parser.add_argument("--only-one", action="store_true", help="keep --record and end")
    arguments = parser.parse_args()
    if arguments.dtype == "float32":
        os.environ["TRITON_F32_DEFAULT"] = "ieee"  # read when kernels are compiled
    with tempfile.TemporaryDirectory() as folder:
        record = arguments.record or Path(folder) / "record.pt"
        if arguments.only_one or not record.exists():
            asyncio.run(spoken(arguments, 1, record))
        if arguments.only_one:
            return
        ranks = asyncio.run(spoken(arguments, 2, record))
    report = {
        "dtype": arguments.dtype,
        "ranks_agree": ranks[0] == ranks[1],
        "cosine_min": min(request["cosine_min"] for request in ranks[0].values()),
        "hidden_cosine_min": min(request["hidden_cosine_min"] for request in ranks[0].values()),
        "requests": ranks[0],
    }
    arguments.out.write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
