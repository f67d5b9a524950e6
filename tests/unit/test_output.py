"""Samples ride on request outputs: in order, merged for slow readers, gone after an abort."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.metrics.stats import IterationStats, PrefillStats

from voxnative.engine.output import READERS_A_PASS, SpeechOutputProcessor, SpeechRequestOutput


def add(
    processor: OutputProcessor, request_id: str, kind: RequestOutputKind = RequestOutputKind.DELTA
) -> RequestOutputCollector:
    sampling = SamplingParams(output_kind=kind, detokenize=False)
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
    queue = RequestOutputCollector(kind, request_id)
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


class Stock:
    """The stock processor beside ours, for the same requests and core outputs without samples."""

    def __init__(self, kind: RequestOutputKind = RequestOutputKind.DELTA) -> None:
        self.stock = OutputProcessor(None, log_stats=True)
        self.ours = SpeechOutputProcessor.from_stock(OutputProcessor(None, log_stats=True))
        self.stock_queue = add(self.stock, "a", kind)
        self.queue = add(self.ours, "a", kind)
        self.stats = [IterationStats(), IterationStats()]

    def step(self, **fields: Any) -> None:
        def output() -> EngineCoreOutput:
            return EngineCoreOutput(request_id="a", new_token_ids=[7], **fields)

        self.stock.process_outputs([output()], 1.0, self.stats[0])
        with_samples = output()
        with_samples.pooling_output = torch.ones(2)
        self.ours.process_outputs([with_samples], 1.0, self.stats[1])

    def check(self) -> None:
        """Both readers get the same now."""
        ours, stock = self.queue.get_nowait(), self.stock_queue.get_nowait()
        assert isinstance(ours, SpeechRequestOutput)
        assert isinstance(stock, RequestOutput)
        fields = dict(ours.__dict__)
        samples = fields.pop("multimodal_output")["model_outputs"]
        assert len(samples) == len(ours.outputs[0].token_ids)
        expected = dict(stock.__dict__)
        for shown in (fields, expected):
            shown["outputs"] = [dataclasses.asdict(one) for one in shown["outputs"]]
            shown["metrics"] = {
                name: value
                for name, value in dataclasses.asdict(shown["metrics"]).items()
                if not name.endswith(("_ts", "_time", "_latency"))
            }
        assert fields == expected


PREFILL = PrefillStats()


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("kind", [RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE])
def test_outputs_are_those_of_the_stock_processor(kind: RequestOutputKind, is_slow: bool) -> None:
    """Of every step, whether they are read one by one or merge."""
    both = Stock(kind)
    steps: list[dict[str, Any]] = [
        {"prefill_stats": PREFILL},
        {},
        {},
        {"stop_reason": 130},
        {"kv_transfer_params": {"a": 1}},
        {},
        {"finish_reason": FinishReason.STOP, "stop_reason": 130},
    ]
    for fields in steps:
        both.step(**fields)
        if not is_slow and kind is RequestOutputKind.DELTA:
            both.check()
    if is_slow and kind is RequestOutputKind.DELTA:
        both.check()
    assert both.ours.request_states == both.stock.request_states == {}
    counted = [(s.num_generation_tokens, len(s.inter_token_latencies_iter)) for s in both.stats]
    assert counted[0] == counted[1] == (len(steps), len(steps) - 1)


def test_only_first_and_last_outputs_take_the_stock_way(monkeypatch: pytest.MonkeyPatch) -> None:
    processor, queue = start("a")
    state = processor.request_states["a"]
    n_made = 0
    make = state.make_request_output

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal n_made
        n_made += 1
        return make(*arguments, **named)

    monkeypatch.setattr(state, "make_request_output", counted)
    for value in range(20):
        processor.process_outputs([step("a", value)])
        (chunk,) = read(queue).multimodal_output["model_outputs"]
        assert chunk.tolist() == [value] * 4
    assert n_made == 1
    processor.process_outputs([step("a", 20, FinishReason.STOP)])
    assert n_made == 2
    assert read(queue).finished


def speaking(n_requests: int) -> tuple[SpeechOutputProcessor, list[RequestOutputCollector]]:
    """Requests that have had their first output."""
    processor, first = start("r0")
    queues = [first, *(add(processor, f"r{i}") for i in range(1, n_requests))]
    processor.process_outputs([step(f"r{i}", 0.0) for i in range(n_requests)])
    assert all(len(samples_of(queue)) == 1 for queue in queues)
    return processor, queues


def samples_of(queue: RequestOutputCollector) -> list[float]:
    """The level of each step that can be read now."""
    output = queue.get_nowait()
    if output is None:
        return []
    assert isinstance(output, SpeechRequestOutput)
    assert len(output.outputs[0].token_ids) == len(output.multimodal_output["model_outputs"])
    return [chunk[0].item() for chunk in output.multimodal_output["model_outputs"]]


def test_readers_are_woken_a_few_in_each_pass() -> None:
    n = 2 * READERS_A_PASS + 3

    async def scenario() -> None:
        processor, queues = speaking(n)
        processor.process_outputs([step(f"r{i}", 1.0) for i in range(n)])
        woken = []
        for _ in range(4):
            woken.append(sum(queue.output is not None for queue in queues))
            await asyncio.sleep(0)
        assert woken == [READERS_A_PASS, 2 * READERS_A_PASS, n, n]
        assert all(samples_of(queue) == [1.0] for queue in queues)

    asyncio.run(scenario())


def test_who_waits_for_a_turn_gets_everything_with_it() -> None:
    n = READERS_A_PASS + 2

    async def scenario() -> None:
        processor, queues = speaking(n)
        for value in (1.0, 2.0, 3.0):
            processor.process_outputs([step(f"r{i}", value) for i in range(n)])
        assert samples_of(queues[0]) == [1.0]
        assert [samples_of(queue) for queue in queues[READERS_A_PASS:]] == [[], []]
        await asyncio.sleep(0)
        assert [samples_of(queue) for queue in queues[READERS_A_PASS:]] == [[1.0, 2.0, 3.0]] * 2
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert samples_of(queues[0]) == [2.0, 3.0]

    asyncio.run(scenario())


def test_first_and_last_outputs_and_aborts_do_not_wait_for_a_turn() -> None:
    n = READERS_A_PASS + 2

    async def scenario() -> None:
        processor, queues = speaking(n)
        new = add(processor, "new")
        outputs = [step(f"r{i}", 1.0) for i in range(n)]
        processor.process_outputs([*outputs, step("new", 7.0)])
        assert samples_of(new) == [7.0]
        processor.process_outputs([step(f"r{n - 1}", 2.0, FinishReason.STOP)])
        last = read_now(queues[n - 1])
        assert [c[0].item() for c in last.multimodal_output["model_outputs"]] == [1.0, 2.0]
        assert last.outputs[0].token_ids == [7, 7]
        assert last.finished
        processor.abort_requests([f"r{n - 2}"], internal=True)
        aborted = read_now(queues[n - 2])
        assert [c[0].item() for c in aborted.multimodal_output["model_outputs"]] == [1.0]
        assert aborted.outputs[0].finish_reason == "abort"
        for _ in range(3):  # their turns come, and bring nothing
            await asyncio.sleep(0)
        assert [samples_of(queue) for queue in queues[n - 2 :]] == [[], []]

    asyncio.run(scenario())


def read_now(queue: RequestOutputCollector) -> SpeechRequestOutput:
    output = queue.get_nowait()
    assert isinstance(output, SpeechRequestOutput)
    return output
