"""Data-parallel replicas that answer as vLLM's do, and hold no model."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm import AsyncEngineArgs
from vllm.plugins import load_general_plugins

from tests.checkpoints import write_checkpoint


def replica_config(folder: Path, n_replicas: int) -> Any:
    """vLLM's configuration of so many replicas of a random checkpoint, written to a folder."""
    load_general_plugins()
    return AsyncEngineArgs(
        str(write_checkpoint(folder / "checkpoint")),
        data_parallel_size=n_replicas,
        kv_cache_memory_bytes=1 << 20,
        skip_tokenizer_init=True,
    ).create_engine_config()


def start_replicas(
    serve: Callable[[int, dict[str, str]], None], n_replicas: int, addresses: dict[str, Any]
) -> list[Any]:
    """Forked processes, one a rank, that serve at these addresses of a client."""
    context = multiprocessing.get_context("fork")
    processes: list[Any] = [
        context.Process(target=serve, args=(rank, addresses), daemon=True)
        for rank in range(n_replicas)
    ]
    for process in processes:
        process.start()
    return processes
