"""Batch sizes of the graphs, and the dispatch of rows to them."""

from __future__ import annotations

import pytest

from voxnative.batch_buckets import batch_buckets, bucket_of
from voxnative.side_path_graph import BucketedCalls


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 8, 63, 64, 65, 100, 256, 512])
def test_buckets_ascend_to_the_largest(largest: int) -> None:
    buckets = batch_buckets(largest)
    assert buckets == sorted(set(buckets))
    assert (buckets[0], buckets[-1]) == (1, largest)


def test_padding_is_bounded() -> None:
    buckets = batch_buckets(512)
    for n_rows in range(1, 513):
        bucket = bucket_of(n_rows, buckets)
        assert n_rows <= bucket
        limit = 1 / 8 if n_rows > 64 else 1 / 4
        assert bucket - n_rows <= max(1, limit * n_rows), (n_rows, bucket)
    assert len(buckets) < 50


@pytest.mark.parametrize("n_rows", [0, -1, 9])
def test_rows_outside_the_buckets_are_refused(n_rows: int) -> None:
    with pytest.raises(ValueError, match=f"n_rows={n_rows} is not valid; valid: 1 to 8"):
        bucket_of(n_rows, [1, 4, 8])


def test_no_bucket_for_no_rows() -> None:
    with pytest.raises(ValueError, match="largest=0 is not valid"):
        batch_buckets(0)


def test_a_call_runs_its_rows_on_the_bucket_that_holds_them() -> None:
    ran: list[int] = []
    calls = BucketedCalls(ran.append, [1, 2, 4, 8], "test")
    assert [calls.run(n) for n in (1, 2, 3, 4, 5, 8)] == [1, 2, 4, 4, 8, 8]
    assert ran == [1, 2, 4, 4, 8, 8]
