"""Run a training step as one CUDA graph; on a CPU, run it as it is.

Small networks are bound by kernel launches: replaying a captured step is several times faster
than launching it. The step may read only tensors that stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_UP_STEPS = 8  # cuDNN picks its algorithms and the TorchScript fuser settles


class GraphedStep:
    """Callable that runs `step`.

    Args:
        step: does one whole optimiser step and returns named scalar tensors.
        device: of every tensor the step touches.
        pool: memory pool shared with other graphs that never run at the same time.
    """

    def __init__(
        self, step: Callable[[], dict[str, torch.Tensor]], device: torch.device, pool=None
    ):
        self._step = step
        self._graph = None
        if device.type != "cuda":
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._losses = step()

    def __call__(self) -> dict[str, torch.Tensor]:
        """Run the step once; the returned tensors are overwritten by the next call."""
        if self._graph is None:
            return self._step()
        self._graph.replay()
        return self._losses
