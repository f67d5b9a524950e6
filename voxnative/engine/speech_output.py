"""A step's result whose samples are still on their way from the device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from voxnative.side_path import StepSamples


class AsyncSpeechOutput(AsyncModelRunnerOutput):
    """The stock asynchronous output, with the samples beside its tokens.

    Args:
        inner: the stock output of the step.
        samples: what the side path queued, one part a number of timesteps.
        deliver: waits for one part and returns its samples (``SidePath.deliver``).

    Source: vLLM 0.32, ``vllm/v1/worker/gpu/async_utils.py:AsyncOutput``.
    """

    def __init__(
        self,
        inner: AsyncModelRunnerOutput,
        samples: list[StepSamples],
        deliver: Callable[[StepSamples], list[torch.Tensor]],
    ) -> None:
        self.inner = inner
        self.samples = samples
        self.deliver = deliver

    def get_output(self) -> ModelRunnerOutput:
        """Wait for tokens and samples; called once, by the thread that waits for results."""
        output = self.inner.get_output()
        pooler_output: list[torch.Tensor | None] = [None] * len(output.req_ids)
        for part in self.samples:
            for row, wave in zip(part.rows, self.deliver(part), strict=True):
                pooler_output[row] = wave
        output.pooler_output = pooler_output
        return output
