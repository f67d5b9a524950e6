"""What it would cost a tensor-parallel step to run the side path on one rank and broadcast.

    python -m tests.perf.broadcast_cost [--hidden 2048] [--out FILE]    # on two CUDA devices

Every rank of an engine runs the side path whole, from the same inputs, and sends nothing. The other
way is one rank that runs it and broadcasts the next input embeddings ``[B, H]``, which the language
models of all ranks wait for: its price is measured here, in a CUDA graph as in the engine, on the
step's critical path. What it could win is nothing but the other ranks' work, beside which nobody
waits.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

BATCHES = (1, 8, 32, 64, 128, 256)
N_IN_GRAPH = 50
N_REPLAYS = 20


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _broadcast_us(n_rows: int, hidden: int, device: torch.device) -> float:
    """Microseconds of one broadcast of bfloat16 ``[n_rows, hidden]`` from rank 0."""
    embeds = torch.zeros(n_rows, hidden, dtype=torch.bfloat16, device=device)
    for _ in range(3):
        dist.broadcast(embeds, 0)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(N_IN_GRAPH):
            dist.broadcast(embeds, 0)
    graph.replay()
    torch.cuda.synchronize(device)
    dist.barrier()
    started = time.perf_counter()
    for _ in range(N_REPLAYS):
        graph.replay()
    torch.cuda.synchronize(device)
    return 1e6 * (time.perf_counter() - started) / (N_IN_GRAPH * N_REPLAYS)


def _rank(rank: int, port: int, hidden: int, results: Any) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("nccl", init_method=address, rank=rank, world_size=2, device_id=device)
    for n_rows in BATCHES:
        took_us = _broadcast_us(n_rows, hidden, device)
        if rank == 0:
            results[n_rows] = round(took_us, 2)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_rank, args=(_free_port(), arguments.hidden, results), nprocs=2)
        report = {
            "device": torch.cuda.get_device_name(0),
            "hidden": arguments.hidden,
            "broadcast_us": {str(n_rows): results[n_rows] for n_rows in BATCHES},
        }
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
