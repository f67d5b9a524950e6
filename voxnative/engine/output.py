"""Front-end side of the audio: pooling tensors of the core outputs -> request outputs.

The worker sends one tensor of new samples a step beside the new token. vLLM's stock
output processor would take it for the result of a pooling request, and its collector
would overwrite what a slow reader has not fetched. Here the tensors are taken off the
core outputs and ride on the request's own outputs, which concatenate when they merge.
"""

from typing import Any

import torch
from vllm.outputs import RequestOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.output_processor import (
    OutputProcessor,
    OutputProcessorOutput,
    RequestOutputCollector,
)
from vllm.v1.engine.parallel_sampling import ParentRequest


class SpeechRequestOutput(RequestOutput):
    """A request output with the waveform made since the last one.

    Attributes:
        multimodal_output: ``{"model_outputs": [tensor [n_samples] float32, ...]}``, the new
            samples only; the list is empty when nothing new came (an abort).
    """

    multimodal_output: dict[str, list[torch.Tensor]]

    @classmethod
    def from_stock(cls, output: RequestOutput, chunks: list[torch.Tensor]) -> "SpeechRequestOutput":
        """The stock output's fields and the chunks."""
        new = cls.__new__(cls)
        new.__dict__.update(output.__dict__)
        new.multimodal_output = {"model_outputs": chunks}
        return new

    def add(self, next_output: RequestOutput, aggregate: bool) -> None:
        """Merge a later output into this unread one; its samples go behind ours."""
        assert isinstance(next_output, SpeechRequestOutput)
        self.multimodal_output["model_outputs"] += next_output.multimodal_output["model_outputs"]
        super().add(next_output, aggregate)


class ChunkCollector:
    """Stands between the output processor and the reader's queue and attaches chunks."""

    def __init__(self, queue: RequestOutputCollector) -> None:
        self.queue = queue
        self.chunks: list[torch.Tensor] = []

    def put(self, output: Any) -> None:
        """Attach what has come since the last output; errors and the like pass as they are."""
        if isinstance(output, RequestOutput):
            output = SpeechRequestOutput.from_stock(output, self.chunks)
            self.chunks = []
        self.queue.put(output)


class SpeechOutputProcessor(OutputProcessor):
    """Stock output processor for requests whose core outputs carry samples.

    Source: vLLM 0.32, ``vllm/v1/engine/output_processor.py``.
    """

    @classmethod
    def from_stock(cls, stock: OutputProcessor) -> "SpeechOutputProcessor":
        """Take over a fresh processor's settings; it must hold no request yet."""
        assert not stock.request_states, "requests were added before the processor was replaced"
        return cls(
            stock.tokenizer,
            log_stats=stock.log_stats,
            stream_interval=stock.stream_interval,
            tracing_enabled=stock.tracing_enabled,
            admission_stats=stock.admission_stats,
        )

    def add_request(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        parent_req: ParentRequest | None = None,
        request_index: int = 0,
        queue: RequestOutputCollector | None = None,
    ) -> None:
        """Register a request; its queue gets a chunk collector in front."""
        assert queue is not None, "speech needs the asynchronous engine"
        collector: Any = ChunkCollector(queue)
        super().add_request(request, prompt, parent_req, request_index, collector)

    def process_outputs(
        self, engine_core_outputs: list[EngineCoreOutput], *args: Any, **kwargs: Any
    ) -> OutputProcessorOutput:
        """Move each core output's tensor to its request before the stock processing."""
        for output in engine_core_outputs:
            samples, output.pooling_output = output.pooling_output, None
            state = self.request_states.get(output.request_id)
            # No state: the request was aborted while this step ran; its samples end here.
            if samples is not None and state is not None:
                collector: Any = state.queue
                collector.chunks.append(samples)
        return super().process_outputs(engine_core_outputs, *args, **kwargs)
