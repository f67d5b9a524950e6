"""Batch sizes that graphs are captured for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def batch_buckets(largest: int) -> list[int]:
    """Ascending sizes up to `largest`, which is always one of them.

    Four an octave below 64 rows, where a step's time hardly depends on its rows; eight an
    octave from there on, so that padding costs at most an eighth of the arithmetic.

    Raises:
        ValueError: `largest` is below 1.
    """
    if largest < 1:
        raise ValueError(f"largest={largest} is not valid; valid: 1 or more")
    sizes = []
    size = 1
    while size < largest:
        sizes.append(size)
        octave = 1 << (size.bit_length() - 1)
        size += max(1, octave // (8 if size >= 64 else 4))
    return [*sizes, largest]


def bucket_of(n_rows: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds `n_rows`.

    Raises:
        ValueError: more rows than the largest bucket.
    """
    index = bisect_left(buckets, n_rows)
    if n_rows < 1 or index == len(buckets):
        raise ValueError(f"n_rows={n_rows} is not valid; valid: 1 to {buckets[-1]}")
    return buckets[index]
