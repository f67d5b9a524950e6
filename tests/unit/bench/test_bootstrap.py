"""Intervals: they hold the value, shrink with more requests, and repeat."""

from __future__ import annotations

import numpy as np
import pytest

from voxnative.bench.bootstrap import mean, ratio


def test_equal_values_have_no_spread() -> None:
    estimate = mean([3.0, 3.0, 3.0])
    assert (estimate.value, estimate.low, estimate.high, estimate.n) == (3.0, 3.0, 3.0, 3)


def test_the_interval_of_a_mean_is_that_of_the_normal_law() -> None:
    values = np.random.default_rng(0).normal(5.0, 2.0, 400)
    estimate = mean(list(values))
    standard_error = values.std() / 20
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.low == pytest.approx(values.mean() - 1.96 * standard_error, abs=0.03)
    assert estimate.high == pytest.approx(values.mean() + 1.96 * standard_error, abs=0.03)
    assert mean(list(values)) == estimate


def test_a_word_error_rate_weighs_requests_by_their_words() -> None:
    estimate = ratio([100.0, 0.0], [1.0, 9.0])
    assert estimate.value == pytest.approx(10.0)
    assert (estimate.low, estimate.high) == (0.0, 100.0)
