"""Confidence intervals by the percentile bootstrap over requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

N_RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure and the interval that holds it with 95 % confidence.

    Attributes:
        n: requests it comes from.
    """

    value: float
    low: float
    high: float
    n: int


def ratio(numerators: Sequence[float], denominators: Sequence[float], seed: int = 0) -> Estimate:
    """Sum over sum, as a word error rate is; requests are drawn anew, not words.

    Args:
        numerators: one a request.
        denominators: one a request, with a sum above 0.
        seed: the interval is the same for the same figures.
    """
    a, b = np.asarray(numerators, float), np.asarray(denominators, float)
    draws = np.random.default_rng(seed).integers(len(a), size=(N_RESAMPLES, len(a)))
    resampled = a[draws].sum(axis=1) / np.maximum(b[draws].sum(axis=1), 1e-12)
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(a.sum() / b.sum()), float(low), float(high), len(a))


def mean(values: Sequence[float], seed: int = 0) -> Estimate:
    """The mean."""
    return ratio(values, [1.0] * len(values), seed)
