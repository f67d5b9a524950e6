"""CUDA worker that builds our model runner and refuses what its memory cannot hold."""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm.utils.mem_utils import format_gib
from vllm.v1.worker.gpu_worker import Worker

from voxnative.engine import batch_invariance
from voxnative.engine.orphan_watch import end_with_front_end
from voxnative.engine.runner_gpu import SpeechGPUModelRunner
from voxnative.engine.worker_rpc import SpeechWorkerRpc

# Behind the KV cache are allocated vLLM's own graphs of the language models (an estimated 1 GiB for
# steps of 8,192 tokens, half of it partial results of the attention), and what the decoder takes
# while a continuation is primed.
RESERVE_BYTES = 2 << 30


class SpeechGPUWorker(SpeechWorkerRpc, Worker):
    """Stock CUDA worker with our runner.

    Source: vLLM 0.32, ``vllm/v1/worker/gpu_worker.py``.
    """

    def init_device(self) -> None:
        """Initialise the device; the engine ends when its front end is gone."""
        executor = self.parallel_config.distributed_executor_backend
        in_engine = executor == "uni"  # else, with several ranks or replicas, a child of it
        end_with_front_end(os.getpid() if in_engine else os.getppid())
        if batch_invariance.is_on():
            batch_invariance.deny_products_a_workspace()
        super().init_device()
        if batch_invariance.is_on():
            batch_invariance.agree_on_tf32()

    def _make_model_runner(self) -> Any:
        """Build the runner.

        Raises:
            ValueError: Model Runner V2 was switched off.
        """
        if not self.use_v2_model_runner:
            raise ValueError(
                "VLLM_USE_V2_MODEL_RUNNER=0 is not valid with VoxCPM2 on CUDA; valid: 1, or unset"
            )
        return SpeechGPUModelRunner(self.vllm_config, self.device)

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache, behind weights, side path and graphs.

        Raises:
            ValueError: the KV cache does not fit into what is free; the message has the numbers.
        """
        # Before vLLM measures, so that it counts the graphs; and not while it does: it limits
        # then how the allocator splits blocks, and each batch size would take blocks of its own.
        self.model_runner.capture_side_path()
        wanted = int(super().determine_available_memory())
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.device)
        refuse_too_large_cache(
            wanted=wanted,
            free=free,
            total=total,
            graphs=self.model_runner.side_path_graph_bytes,
            is_explicit=self.cache_config.kv_cache_memory_bytes is not None,
            utilization=self.cache_config.gpu_memory_utilization,
        )
        return wanted


def refuse_too_large_cache(
    *, wanted: int, free: int, total: int, graphs: int, is_explicit: bool, utilization: float
) -> None:
    """Check a KV cache's size against the memory that is free once everything else is loaded.

    Args:
        wanted: bytes of the KV cache.
        free, total: bytes of the device.
        graphs: bytes that the side path's graphs took of it already.
        is_explicit: `kv_cache_memory_bytes` was set, not `gpu_memory_utilization`.
        utilization: the latter's value.

    Raises:
        ValueError: it does not fit.
    """
    if wanted + RESERVE_BYTES <= free:
        return
    setting = (
        f"kv_cache_memory_bytes={wanted}"
        if is_explicit
        else f"gpu_memory_utilization={utilization}"
    )
    share = max(0.0, utilization - (wanted + RESERVE_BYTES - free) / total)
    valid = (
        f"kv_cache_memory_bytes of at most {max(0, free - RESERVE_BYTES)}"
        if is_explicit
        else f"at most {int(share * 1000) / 1000}"
    )
    raise ValueError(
        f"{setting} is not valid: the KV cache would take {format_gib(wanted)} GiB and vLLM's "
        f"graphs and transient work need {format_gib(RESERVE_BYTES)} GiB, but only "
        f"{format_gib(free)} of {format_gib(total)} GiB are free behind weights, the side path and "
        f"its graphs ({format_gib(graphs)} GiB); valid: {valid}"
    )
