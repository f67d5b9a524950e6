"""OpenMP threads of an engine on a CPU."""

import os

from vllm.utils.torch_utils import available_cpu_count


def leave_one_core() -> None:
    """Let the engine's process use all cores but one; the user's own setting stands.

    OpenMP threads wait for each other by spinning. One that has to share its core holds up all:
    with every core in use and another process beside it, a step took up to ten times as long
    (plan/LOG.md). The free core is for the front end. vLLM itself would leave one thread.

    Called in the front end, whose environment the engine's process starts with.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cpu_count() - 1)))
