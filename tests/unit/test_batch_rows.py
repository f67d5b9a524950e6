"""Which rows of a batch sample, decode or replay, from the host's arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voxnative.engine.batch_rows import decode_rows, replayed_spans, sampling_rows


@dataclass
class Batch:
    """The arrays of vLLM's ``InputBatch`` that the rows are read from."""

    req_ids: list[str]
    num_computed_tokens_np: np.ndarray
    num_scheduled_tokens: np.ndarray
    prefill_len_np: np.ndarray
    query_start_loc_np: np.ndarray


def batch(*rows: tuple[str, int, int, int]) -> Batch:
    """Rows of (request, computed, scheduled, prefill length)."""
    ids, computed, scheduled, prefill = zip(*rows, strict=True)
    ends = np.cumsum(scheduled)
    padded = np.concatenate([[0], ends, [ends[-1]] * 3])  # as for a graph of more requests
    return Batch(list(ids), *(np.array(x) for x in (computed, scheduled, prefill)), padded)


def test_decode_prefill_and_chunks() -> None:
    mixed = batch(
        ("decodes", 20, 1, 12),
        ("decodes first", 12, 1, 12),
        ("last prompt position alone", 11, 1, 12),
        ("whole prompt", 0, 7, 7),
        ("chunk", 0, 5, 30),
        ("last chunk", 16, 14, 30),
    )
    assert decode_rows(mixed).tolist() == [0, 1]
    assert sampling_rows(mixed) == [0, 1, 2, 3, 5]


def test_a_preempted_request_replays_what_it_had_generated() -> None:
    """Prompt of 10, 6 patches generated: the prefill has 16 positions, in chunks of 7, 1 and 8."""
    n_prompt = {"r": 10}

    def spans(computed: int, scheduled: int) -> list[tuple[str, slice, slice]]:
        other = ("other", 40, 1, 12)  # decodes in front of it
        return list(replayed_spans(batch(other, ("r", computed, scheduled, 16)), n_prompt))

    assert spans(0, 7) == []
    assert spans(0, 16) == [("r", slice(0, 6), slice(11, 17))]
    assert spans(7, 5) == [("r", slice(0, 2), slice(4, 6))]
    assert spans(12, 4) == [("r", slice(2, 6), slice(1, 5))]  # the cache held two of them
    assert spans(15, 1) == [("r", slice(5, 6), slice(1, 2))]
