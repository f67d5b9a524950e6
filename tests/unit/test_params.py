"""SpeechParams: every field's range, type and message; seconds to patches."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from voxnative.errors import ParameterError
from voxnative.params import BadCaseRule, SpeechParams, steps_for_seconds
from voxnative.units import MAX_SEED, MAX_STEPS


def test_defaults_are_the_reference_s() -> None:
    """But for the guard against silence, which it does not have."""
    assert dataclasses.astuple(SpeechParams()) == (None, 2.0, 10, 1.0, None, 2, 3.0)
    assert dataclasses.astuple(BadCaseRule()) == (False, 3, 6.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", 0),
        ("seed", MAX_SEED),
        ("seed", np.int64(7)),
        ("cfg", 0),
        ("cfg", 10.0),
        ("cfg", np.float32(1.5)),
        ("timesteps", 2),
        ("timesteps", 100),
        ("temperature", 0.0),
        ("temperature", 2),
        ("max_steps", 1),
        ("max_steps", MAX_STEPS),
        ("min_steps", 0),
    ],
)
def test_the_ends_of_each_range_are_valid(field: str, value: object) -> None:
    assert getattr(SpeechParams(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "value", "valid"),
    [
        ("seed", -1, f"a whole number from 0 to {MAX_SEED}"),
        ("seed", MAX_SEED + 1, f"a whole number from 0 to {MAX_SEED}"),
        ("seed", 1.0, f"a whole number from 0 to {MAX_SEED}"),
        ("seed", "7", f"a whole number from 0 to {MAX_SEED}"),
        ("seed", True, f"a whole number from 0 to {MAX_SEED}"),
        ("cfg", -0.1, "0.0 to 10.0"),
        ("cfg", 99, "0.0 to 10.0"),
        ("cfg", math.nan, "0.0 to 10.0"),
        ("cfg", math.inf, "0.0 to 10.0"),
        ("cfg", False, "0.0 to 10.0"),
        ("cfg", None, "0.0 to 10.0"),
        ("timesteps", 1, "a whole number from 2 to 100"),
        ("timesteps", 101, "a whole number from 2 to 100"),
        ("timesteps", 10.0, "a whole number from 2 to 100"),
        ("temperature", -1.0, "0.0 to 2.0"),
        ("temperature", 2.5, "0.0 to 2.0"),
        ("max_steps", 0, f"a whole number from 1 to {MAX_STEPS}"),
        ("max_steps", MAX_STEPS + 1, f"a whole number from 1 to {MAX_STEPS}"),
        ("min_steps", -1, f"a whole number from 0 to {MAX_STEPS}"),
    ],
)
def test_a_bad_value_is_named_with_its_field_and_range(
    field: str, value: object, valid: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        SpeechParams(**{field: value})
    assert (caught.value.field, caught.value.valid) == (field, valid)
    assert str(caught.value) == f"field '{field}': {value!r} is not valid; valid: {valid}"


def test_params_cannot_change_after_validation() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SpeechParams().cfg = 99.0


@pytest.mark.parametrize(
    ("seconds", "n_patches"), [(0.01, 1), (0.16, 1), (0.17, 2), (0.48, 3), (1, 7), (10.0, 63)]
)
def test_seconds_round_up_to_whole_patches(seconds: float, n_patches: int) -> None:
    assert steps_for_seconds(seconds, 0.16) == n_patches


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan, math.inf, 1e6, True, "3", None])
def test_seconds_out_of_range_are_refused(seconds: object) -> None:
    with pytest.raises(ParameterError, match=r"field 'max_seconds'.*above 0 and up to 327\.68"):
        steps_for_seconds(seconds, 0.16)
