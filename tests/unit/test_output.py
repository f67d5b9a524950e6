"""Samples ride on request outputs: in order, merged for slow readers, gone after an abort."""

from __future__ import annotations

import asyncio

import torch
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

from voxnative.engine.output import SpeechOutputProcessor, SpeechRequestOutput


def add(processor: SpeechOutputProcessor, request_id: str) -> RequestOutputCollector:
    sampling = SamplingParams(output_kind=RequestOutputKind.DELTA, detokenize=False)
    request = EngineCoreRequest(
        request_id=request_id,
        external_req_id=request_id,
        prompt_token_ids=[1, 2, 3],
        mm_features=None,
        sampling_params=sampling,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    queue = RequestOutputCollector(RequestOutputKind.DELTA, request_id)
    processor.add_request(request, None, queue=queue)
    return queue


def start(request_id: str) -> tuple[SpeechOutputProcessor, RequestOutputCollector]:
    processor = SpeechOutputProcessor.from_stock(OutputProcessor(None, log_stats=False))
    return processor, add(processor, request_id)


def step(request_id: str, value: float, finish: FinishReason | None = None) -> EngineCoreOutput:
    return EngineCoreOutput(
        request_id=request_id,
        new_token_ids=[7],
        pooling_output=torch.full((4,), value),
        finish_reason=finish,
    )


def read(queue: RequestOutputCollector) -> SpeechRequestOutput:
    output = asyncio.run(asyncio.wait_for(queue.get(), 5))
    assert isinstance(output, SpeechRequestOutput)
    return output


def test_each_step_brings_its_own_samples() -> None:
    processor, queue = start("a")
    for value in (1.0, 2.0):
        processor.process_outputs([step("a", value)])
        (chunk,) = read(queue).multimodal_output["model_outputs"]
        assert chunk.tolist() == [value] * 4


def test_a_slow_reader_loses_nothing() -> None:
    processor, queue = start("a")
    for value in (1.0, 2.0, 3.0):
        processor.process_outputs([step("a", value)])
    processor.process_outputs([step("a", 4.0, FinishReason.STOP)])
    output = read(queue)
    assert [chunk[0].item() for chunk in output.multimodal_output["model_outputs"]] == [1, 2, 3, 4]
    assert output.outputs[0].token_ids == [7, 7, 7, 7]
    assert output.finished
    assert output.outputs[0].finish_reason == "stop"
    assert processor.request_states == {}


def test_an_abort_ends_the_stream_without_samples() -> None:
    processor, queue = start("a")
    processor.process_outputs([step("a", 1.0)])
    read(queue)
    assert processor.abort_requests(["a"], internal=True) == ["a"]
    output = read(queue)
    assert output.finished
    assert output.multimodal_output["model_outputs"] == []
    assert output.outputs[0].finish_reason == "abort"
    # The step that was under way arrives late and is dropped.
    late = step("a", 2.0)
    processor.process_outputs([late])
    assert late.pooling_output is None
    assert queue.get_nowait() is None


def test_requests_do_not_mix() -> None:
    processor, queue = start("a")
    other = add(processor, "b")
    processor.process_outputs([step("b", 5.0), step("a", 6.0)])
    assert read(queue).multimodal_output["model_outputs"][0][0] == 6.0
    assert read(other).multimodal_output["model_outputs"][0][0] == 5.0
