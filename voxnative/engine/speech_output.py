"""A step's result whose samples are still on their way from the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from voxnative.live_request import StepSamples


class UnsentSamples:
    """Samples of a tensor-parallel rank whose results nobody fetches.

    vLLM takes each step's output from one rank and drops the others'. The side path runs on all of
    them, and their embeddings must come into the histories for a replay after a preemption.

    Args:
        deliver: waits for one part and keeps its embeddings (``SidePath.deliver``).
    """

    def __init__(self, deliver: Callable[[StepSamples], list[torch.Tensor]]) -> None:
        self._deliver = deliver
        self._parts: deque[StepSamples] = deque()

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, samples: list[StepSamples]) -> None:
        """Take a step's parts, and deliver those that have arrived; waits for none."""
        self._parts.extend(samples)
        while self._parts:
            arrived = self._parts[0].arrived
            if arrived is not None and not arrived.query():
                return
            self._deliver(self._parts.popleft())

    def settle(self) -> None:
        """Deliver all parts, waiting where they are still on their way."""
        while self._parts:
            self._deliver(self._parts.popleft())


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
