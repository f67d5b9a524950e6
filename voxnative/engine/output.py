"""Front-end side of the audio: pooling tensors of the core outputs -> request outputs.

The worker sends one tensor of new samples a step beside the new token. vLLM's stock
output processor would take it for the result of a pooling request, and its collector
would overwrite what a slow reader has not fetched. Here the tensors are taken off the
core outputs and ride on the request's own outputs, which concatenate when they merge.

Nearly all core outputs are a token of a running request and nothing else. What the stock
processor makes of those is always the same, so they are put here, a few readers at a time; first
and last outputs, and whatever says more, go through the stock processor and are put at once.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.output_processor import (
    OutputProcessor,
    OutputProcessorOutput,
    RequestOutputCollector,
    RequestState,
)
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import IterationStats

READERS_A_PASS = 16
# Fields that say something of one output alone.
_OF_ONE_OUTPUT = {"kv_transfer_params": None, "ec_transfer_params": None}


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

    def add_step(self, token_ids: list[int], chunks: list[torch.Tensor]) -> None:
        """What :meth:`add` does with a further token and nothing else, in less time."""
        self.multimodal_output["model_outputs"] += chunks
        self.__dict__.update(_OF_ONE_OUTPUT)
        (completion,) = self.outputs
        completion.token_ids = [*completion.token_ids, *token_ids]
        completion.stop_reason = None


class ChunkCollector:
    """Stands between the output processor and the reader's queue and attaches chunks.

    What a further step brought waits here until :meth:`wake`, and whatever the request ends with
    takes it along.
    """

    def __init__(self, queue: RequestOutputCollector) -> None:
        self.queue = queue
        self.chunks: list[torch.Tensor] = []
        self._token_ids: list[int] = []  # of steps that wait
        self._fields: dict[str, Any] | None = None  # of the request's outputs

    @property
    def has_put(self) -> bool:
        """Whether the stock processor has made an output of this request."""
        return self._fields is not None

    @property
    def waits(self) -> bool:
        """Whether there are steps that the reader has not been told of."""
        return bool(self._token_ids)

    def put(self, output: Any) -> None:
        """Attach what has come since the last output; errors and the like pass as they are."""
        if isinstance(output, RequestOutput):
            if self.waits:
                self.wake()
            self._fields = output.__dict__ | _OF_ONE_OUTPUT
            output = SpeechRequestOutput.from_stock(output, self.chunks)
            self.chunks = []
        self.queue.put(output)

    def add_step(self, token_ids: list[int]) -> None:
        """A further token and nothing else has come, and its samples."""
        self._token_ids += token_ids

    def wake(self) -> None:
        """Put what the stock processor would make of the steps that wait."""
        token_ids, self._token_ids = self._token_ids, []
        chunks, self.chunks = self.chunks, []
        unread = self.queue.output
        if isinstance(unread, SpeechRequestOutput):  # the reader is behind
            unread.add_step(token_ids, chunks)
            return
        output = SpeechRequestOutput.__new__(SpeechRequestOutput)
        output.__dict__.update(self._fields or {})
        output.outputs = [
            CompletionOutput(
                index=0, text="", token_ids=token_ids, cumulative_logprob=None, logprobs=None
            )
        ]
        output.multimodal_output = {"model_outputs": chunks}
        self.queue.put(output)


class Turns:
    """Wakes readers, a few in each pass of the event loop.

    Each pass of a loop that serves many streams would otherwise take as long as all of them
    together, and a new request needs some fifteen passes before it is in the engine. Streams that
    wait for their turn get what has come meanwhile with it, so that the more there is to do, the
    less each chunk costs.

    Args:
        n_at_once: readers woken in one pass.
    """

    def __init__(self, n_at_once: int) -> None:
        self._n_at_once = n_at_once
        self._waiting: deque[ChunkCollector] = deque()
        self._goes_on = False  # in the loop's next pass

    def add(self, collector: ChunkCollector) -> None:
        """Take a collector whose steps wait; it has its turn behind the others."""
        self._waiting.append(collector)

    def begin(self) -> None:
        """Give the first turns, unless turns are under way."""
        if not self._goes_on:
            self._give()

    def _give(self) -> None:
        for _ in range(min(self._n_at_once, len(self._waiting))):
            collector = self._waiting.popleft()
            if collector.waits:  # otherwise the request has ended
                collector.wake()
        self._goes_on = bool(self._waiting)
        if self._goes_on:
            asyncio.get_running_loop().call_soon(self._give)


class SpeechOutputProcessor(OutputProcessor):
    """Stock output processor for requests whose core outputs carry samples.

    First and last outputs are put at once; further ones in `Turns`.

    Source: vLLM 0.32, ``vllm/v1/engine/output_processor.py``.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._turns = Turns(READERS_A_PASS)

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

    def fail(self, request_ids: Sequence[str], error: Exception) -> None:
        """End requests with an error, which overtakes what has not been read, and forget them."""
        known = [name for name in request_ids if name in self.request_states]
        queues: list[Any] = [self.request_states[name].queue for name in known]
        self.abort_requests(known, internal=True)
        for queue in queues:
            queue.put(error)

    def process_outputs(
        self,
        engine_core_outputs: list[EngineCoreOutput],
        engine_core_timestamp: float | None = None,
        iteration_stats: IterationStats | None = None,
        weight_version: str | None = None,
    ) -> OutputProcessorOutput:
        """Move each core output's tensor to its request, and put or process the output."""
        others = []
        for output in engine_core_outputs:
            samples, output.pooling_output = output.pooling_output, None
            state = self.request_states.get(output.request_id)
            if state is None:
                continue  # aborted while this step ran; its samples end here
            collector: Any = state.queue
            if samples is not None:
                collector.chunks.append(samples)
            if weight_version is not None or not _is_further_step(output, state):
                others.append(output)
                continue
            self._update_stats_from_output(state, output, engine_core_timestamp, iteration_stats)
            state.detokenizer.update(output.new_token_ids, False)  # type: ignore[union-attr]
            if not collector.waits:
                self._turns.add(collector)
            collector.add_step(output.new_token_ids)
        processed = super().process_outputs(
            others, engine_core_timestamp, iteration_stats, weight_version
        )
        self._turns.begin()
        return processed


def _is_further_step(output: EngineCoreOutput, state: RequestState) -> bool:
    """Whether an output is tokens and nothing else, of a request that has had an output."""
    collector: Any = state.queue
    return (
        collector.has_put
        and not state.is_prefilling
        and state.output_kind is RequestOutputKind.DELTA
        and state.stream_interval == 1
        and type(state.detokenizer) is IncrementalDetokenizer  # no text is asked for
        and state.parent_req is None
        and not state.streaming_input
        and output == EngineCoreOutput(output.request_id, output.new_token_ids)
    )
