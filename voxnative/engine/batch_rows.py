"""Which rows of a Model Runner V2 batch do what, from what the host knows of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np


class BatchView(Protocol):
    """The fields of vLLM's ``InputBatch`` that are read here; arrays are [n_requests]."""

    req_ids: list[str]
    num_scheduled_tokens: np.ndarray
    num_computed_tokens_np: np.ndarray
    prefill_len_np: np.ndarray
    query_start_loc_np: np.ndarray


def sampling_rows(batch: BatchView) -> list[int]:
    """Rows whose last position is computed in this step: they sample a token.

    The others stand in the middle of a prefill, and their state must not move.
    """
    n = len(batch.req_ids)
    reached = batch.num_computed_tokens_np[:n] + batch.num_scheduled_tokens[:n]
    return np.flatnonzero(reached >= batch.prefill_len_np[:n]).tolist()


def decode_rows(batch: BatchView) -> np.ndarray:
    """Rows that compute one generated position behind everything prefilled."""
    n = len(batch.req_ids)
    return np.flatnonzero(batch.num_computed_tokens_np[:n] >= batch.prefill_len_np[:n])


def replayed_spans(
    batch: BatchView, n_prompt_of: Mapping[str, int]
) -> Iterator[tuple[str, slice, slice]]:
    """Generated positions that are prefilled again, after a preemption.

    Args:
        batch: the step's batch.
        n_prompt_of: requests that replay, and their prompt's positions.

    Yields:
        Request, rows of its history, token rows of the batch that take them.
    """
    for i, request_id in enumerate(batch.req_ids):
        n_prompt = n_prompt_of.get(request_id)
        if n_prompt is None:
            continue
        first = int(batch.num_computed_tokens_np[i])
        end = min(first + int(batch.num_scheduled_tokens[i]), int(batch.prefill_len_np[i]))
        begin = max(first, n_prompt)
        if begin < end:
            token = int(batch.query_start_loc_np[i]) + begin - first
            rows = slice(begin - n_prompt, end - n_prompt)
            yield request_id, rows, slice(token, token + end - begin)
