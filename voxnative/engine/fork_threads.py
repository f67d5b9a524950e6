"""A fork that may compute: the child of a process that has used OpenMP."""

import os
from functools import cache

import torch


@cache
def compute_alone_after_a_fork() -> None:
    """Have every child that this process forks from now on compute on one thread.

    OpenMP's threads do not survive a fork: a child's first parallel operation would wait for them
    for ever if the parent has had one. torch's DataLoader workers do the same. vLLM forks its
    engine unless CUDA is initialised, which saves the engine's process all its imports.
    """
    os.register_at_fork(after_in_child=_compute_alone)


def _compute_alone() -> None:
    torch.set_num_threads(1)
