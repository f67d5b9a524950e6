"""Engine settings that follow from a checkpoint and the machine, and the engine's start."""

import os
from pathlib import Path
from typing import Any

from vllm import AsyncEngineArgs
from vllm.platforms import current_platform

from voxnative.config import VoxConfig
from voxnative.engine.async_engine import SpeechAsyncLLM
from voxnative.engine.engine_config import CPU_KV_BLOCK, MAX_STEP_TOKENS
from voxnative.kv_memory import kv_bytes_per_position

PARALLEL = ("tensor_parallel_size", "data_parallel_size")


def engine_settings(
    directory: Path,
    config: VoxConfig,
    *,
    dtype: str | None,
    max_num_seqs: int,
    max_model_len: int | None,
    kv_cache_memory_bytes: int | None,
    tensor_parallel_size: int = 1,
    data_parallel_size: int = 1,
) -> dict[str, Any]:
    """vLLM's engine settings for one checkpoint directory.

    On a CPU, vLLM wants the KV cache's size of each rank: room for ``max_num_seqs`` requests of
    ``max_model_len`` positions, all ranks together at most a quarter of the machine's memory.
    """
    settings: dict[str, Any] = {
        "model": str(directory),
        "served_model_name": directory.name,
        "skip_tokenizer_init": True,  # text is tokenised by voxnative.tokenizer
        "dtype": dtype or "auto",
        "max_num_seqs": max_num_seqs,
        "max_model_len": max_model_len or min(config.max_length, config.lm.max_position_embeddings),
        "enable_prefix_caching": True,
        "mm_processor_cache_gb": 0,  # inputs arrive rendered; the encoder cache does the work
        "generation_config": "vllm",
        "disable_log_stats": True,
    }
    if current_platform.is_cpu():
        settings["dtype"] = dtype or "float32"
        settings["enforce_eager"] = True
        blocks_per_request = -(-settings["max_model_len"] // CPU_KV_BLOCK)
        n_tokens = (max_num_seqs * blocks_per_request + 1) * CPU_KV_BLOCK
        wanted = n_tokens * kv_bytes_per_position(config, settings["dtype"], tensor_parallel_size)
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        share = total // (4 * tensor_parallel_size * data_parallel_size)
        kv_cache_memory_bytes = kv_cache_memory_bytes or min(wanted, share)
    else:
        settings["max_num_batched_tokens"] = MAX_STEP_TOKENS
    if kv_cache_memory_bytes is not None:
        settings["kv_cache_memory_bytes"] = kv_cache_memory_bytes
    return settings


def engine_args(directory: Path, config: VoxConfig, **given: Any) -> AsyncEngineArgs:
    """vLLM's arguments: :func:`engine_settings`, and further ones as they are given."""
    own = ("dtype", "max_num_seqs", "max_model_len", "kv_cache_memory_bytes")
    sizes = {name: given[name] for name in PARALLEL if name in given}
    settings = engine_settings(
        directory, config, **{name: given.pop(name) for name in own}, **sizes
    )
    return AsyncEngineArgs(**(settings | given))


def start_engine(args: AsyncEngineArgs) -> SpeechAsyncLLM:
    """Start the engine in its own process; blocks until it is ready."""
    engine = SpeechAsyncLLM.from_engine_args(args)
    assert isinstance(engine, SpeechAsyncLLM)
    return engine
