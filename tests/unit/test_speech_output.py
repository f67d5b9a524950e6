"""A step's samples beside its tokens, and the memory check of the CUDA worker."""

from __future__ import annotations

import pytest
import torch
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from voxnative.engine.speech_output import AsyncSpeechOutput, UnsentSamples
from voxnative.engine.worker_gpu import RESERVE_BYTES, refuse_too_large_cache
from voxnative.live_request import LiveRequest, StepSamples
from voxnative.request_state import StepParams

GiB = 1 << 30


class Finished(AsyncModelRunnerOutput):
    """An output whose copies have arrived."""

    def __init__(self, request_ids: list[str], tokens: list[list[int]]) -> None:
        self.output = ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={name: i for i, name in enumerate(request_ids)},
            sampled_token_ids=tokens,
        )

    def get_output(self) -> ModelRunnerOutput:
        return self.output


def test_samples_reach_the_rows_they_belong_to() -> None:
    """Two solver lengths in one batch; a row in mid-prefill has no sample."""
    params = StepParams(0, 2.0, 10, 1.0, 8)
    requests = [LiveRequest(params, i, torch.Generator()) for i in range(3)]
    parts = [
        StepSamples([3, 0], requests[:2], torch.tensor([[3.0, 3.5], [0.0, 0.5]]), None),
        StepSamples([1], requests[2:], torch.tensor([[1.0, 1.5]]), None),
    ]
    inner = Finished(["a", "b", "c", "d"], [[9], [9], [], [9]])
    output = AsyncSpeechOutput(inner, parts, lambda part: list(part.packed.unbind(0))).get_output()
    assert output.pooler_output is not None
    assert [None if x is None else x.tolist() for x in output.pooler_output] == [
        [0.0, 0.5],
        [1.0, 1.5],
        None,
        [3.0, 3.5],
    ]
    assert output.sampled_token_ids == [[9], [9], [], [9]]


class Copy:
    """Stands where a CUDA event does; this machine has none."""

    def __init__(self) -> None:
        self.is_done = False

    def query(self) -> bool:
        return self.is_done


def test_a_rank_that_sends_nothing_keeps_its_embeddings_in_order() -> None:
    params = StepParams(0, 2.0, 10, 1.0, 8)
    request = LiveRequest(params, 0, torch.Generator())
    delivered: list[float] = []

    def deliver(part: StepSamples) -> list[torch.Tensor]:
        delivered.append(float(part.packed[0, 0]))
        return list(part.packed.unbind(0))

    copies = [Copy(), Copy(), Copy()]
    parts = [
        StepSamples([0], [request], torch.tensor([[float(i)]]), copy)  # type: ignore[arg-type]
        for i, copy in enumerate(copies)
    ]
    unsent = UnsentSamples(deliver)
    unsent.add(parts[:1])
    assert delivered == []
    copies[1].is_done = True  # a later part never overtakes an earlier one
    unsent.add(parts[1:2])
    assert delivered == []
    copies[0].is_done = True
    unsent.add(parts[2:])
    assert delivered == [0.0, 1.0]
    assert len(unsent) == 1
    unsent.settle()
    assert delivered == [0.0, 1.0, 2.0]
    assert len(unsent) == 0


def check(wanted: int, *, is_explicit: bool) -> None:
    refuse_too_large_cache(
        wanted=wanted,
        free=100 * GiB,
        total=140 * GiB,
        graphs=3 * GiB,
        is_explicit=is_explicit,
        utilization=0.95,
    )


def test_a_cache_that_fits_is_taken() -> None:
    check(100 * GiB - RESERVE_BYTES, is_explicit=True)


def test_a_too_large_cache_is_refused_with_numbers() -> None:
    with pytest.raises(ValueError, match="kv_cache_memory_bytes") as refused:
        check(99 * GiB + 1, is_explicit=True)
    message = str(refused.value)
    assert "would take 99.0 GiB" in message
    assert "100.0 of 140.0 GiB are free" in message
    assert "graphs (3.0 GiB)" in message
    assert f"at most {100 * GiB - RESERVE_BYTES}" in message
    with pytest.raises(ValueError, match=r"gpu_memory_utilization=0.95 is not valid") as refused:
        check(106 * GiB + GiB // 2, is_explicit=False)
    assert "valid: at most 0.889" in str(refused.value)
