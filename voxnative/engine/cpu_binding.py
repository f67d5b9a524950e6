"""Cores of a CPU for engines of several processes, where vLLM's own choice has none for them."""

from __future__ import annotations

import os

from vllm.config import ParallelConfig
from vllm.utils.cpu_resource_utils import (
    LogicalCPUInfo,
    get_allowed_cpu_list,
    get_visible_memory_node,
)

BINDING = "VLLM_CPU_OMP_THREADS_BIND"


def share_cores(parallel: ParallelConfig) -> None:
    """Give each worker process of this machine cores of its own, where the user did not.

    vLLM takes a memory node for each tensor-parallel rank, refuses more ranks than nodes, puts
    all replicas on the same cores, and keeps one core a rank free for its scheduler. OpenMP threads
    of two workers on one core hold up both. One core is left to the front end where there are more
    cores than workers; with fewer cores than workers none is bound.

    The engine's processes inherit the setting.

    Source: vLLM 0.32, ``vllm/utils/ompmultiprocessing.py``.
    """
    n_workers = parallel.local_world_size * max(1, parallel.data_parallel_size_local)
    if n_workers == 1 or BINDING in os.environ:
        return
    has_nodes = len(get_visible_memory_node()) >= n_workers
    if has_nodes and parallel.data_parallel_size_local <= 1:
        return  # vLLM's choice fits
    os.environ[BINDING] = binding(get_allowed_cpu_list(), n_workers)


def binding(cores: list[LogicalCPUInfo], n_workers: int) -> str:
    """vLLM's list of cores a worker, as "0,1|2,3", or "nobind".

    Args:
        cores: logical cores that this process may use.
        n_workers: worker processes on this machine, the ranks of a replica side by side.
    """
    ordered = sorted(cores, key=lambda core: (core.numa_node, core.physical_core, core.id))
    physical = {(core.numa_node, core.physical_core): core.id for core in ordered}
    ids = list(physical.values())  # hyperthreads of one core only disturb each other
    if len(ids) < n_workers:
        ids = [core.id for core in ordered]
    if len(ids) > n_workers:
        ids.pop()
    share = len(ids) // n_workers
    if not share:
        return "nobind"
    parts = [ids[i * share : (i + 1) * share] for i in range(n_workers)]
    return "|".join(",".join(map(str, part)) for part in parts)
