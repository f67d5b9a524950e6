"""Two processes that hold a checkpoint's language models together, over gloo."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import uuid
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from vllm import AsyncEngineArgs
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.plugins import load_general_plugins
from vllm.utils.torch_utils import set_default_torch_dtype

from voxnative.engine.model import VoxCPM2ForSpeech
from voxnative.frozen_heap import freeze_heap, thaw_heap

N_RANKS = 2
N_TOKENS = 5
DEADLINE_S = 180  # a rank that waits for the other longer says where, and ends


def inputs(hidden_size: int) -> torch.Tensor:
    """``[N_TOKENS, hidden_size]``, the same in every process."""
    return torch.randn(N_TOKENS, hidden_size, generator=torch.Generator().manual_seed(3))


def run_ranks(checkpoint: Path, folder: Path) -> list[dict[str, Any]]:
    """What each of the processes computed; forked, since vLLM's imports take longer than the rest.

    Args:
        checkpoint: a directory.
        folder: an empty one, for what the processes exchange.
    """
    context = multiprocessing.get_context("fork")
    name = uuid.uuid4().hex
    processes = [
        context.Process(target=_rank, args=(rank, checkpoint, folder, name))
        for rank in range(N_RANKS)
    ]
    # What earlier tests left (engines' clients, event loops) is taken apart here, where its threads
    # are, and not by a collection in a child, which would wait for them.
    gc.collect()
    freeze_heap()
    for process in processes:
        process.start()
    thaw_heap()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * N_RANKS
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(N_RANKS)]


def _rank(rank: int, checkpoint: Path, folder: Path, name: str) -> None:
    """Load a share with the engine's own model and loader, and run its layers."""
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
    torch.set_num_threads(1)  # OpenMP's threads did not survive the fork
    torch._dynamo.config.disable = True  # vLLM compiles the embedding's mask: seconds for a few ids
    load_general_plugins()
    config = AsyncEngineArgs(
        str(checkpoint),
        dtype="float32",
        skip_tokenizer_init=True,
        kv_cache_memory_bytes=1 << 20,
        tensor_parallel_size=N_RANKS,
    ).create_engine_config()
    os.environ["VLLM_DIST_IDENT"] = name  # as the CPU worker names its shared memory
    with (
        set_current_vllm_config(config),
        set_default_torch_dtype(torch.float32),
        torch.inference_mode(),
    ):
        init_distributed_environment(N_RANKS, rank, f"file://{folder}/store", rank, "gloo")
        initialize_model_parallel(N_RANKS)
        model = VoxCPM2ForSpeech(vllm_config=config)
        loaded = model.load_weights(())
        process_weights_after_loading(model, config.model_config, torch.device("cpu"))
        layer = model.base_lm.layers[1]
        x = inputs(model.config.lm.hidden_size)
        attended = x.repeat(1, 2)[:, : layer.self_attn.o_proj.input_size_per_partition]
        result = {
            "loaded": len(loaded),
            "parameters": len(dict(model.named_parameters())),
            "embeds": model.embed_input_ids(torch.arange(N_TOKENS) + 100),
            "qkv": layer.self_attn.qkv_proj(x)[0],
            "o": layer.self_attn.o_proj(attended * (rank + 1))[0],
            "mlp": layer.mlp(x),
            "residual_mlp": model.residual_lm.layers[0].mlp(x),
            "heads": (layer.self_attn.attn.num_heads, layer.self_attn.attn.num_kv_heads),
        }
        torch.save(result, folder / f"rank{rank}.pt")
        torch.distributed.barrier()
