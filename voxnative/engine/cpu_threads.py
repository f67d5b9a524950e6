"""OpenMP threads of an engine on a CPU."""

import os

from vllm.utils.torch_utils import available_cpu_count


def use_all_cores() -> None:
    """Let the engine's process use every core that it may; the user's own setting stands.

    Called in the front end, whose environment the engine's process starts with. vLLM would leave
    one thread where the user set none.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(available_cpu_count()))
