"""Sampling parameters of one request: validated on construction, immutable afterwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from voxnative.errors import ParameterError
from voxnative.units import (
    BADCASE_MAX_TIMES,
    BADCASE_MAX_TIMES_RANGE,
    BADCASE_RATIO_RANGE,
    CFG_RANGE,
    DEFAULT_CFG,
    DEFAULT_MAX_SILENCE_S,
    DEFAULT_MIN_STEPS,
    DEFAULT_TEMPERATURE,
    DEFAULT_TIMESTEPS,
    MAX_SEED,
    MAX_SILENCE_RANGE_S,
    MAX_STEPS,
    STEPS_PER_TOKEN,
    TEMPERATURE_RANGE,
    TIMESTEPS_RANGE,
)


@dataclass(frozen=True)
class SpeechParams:
    """How one request is sampled.

    Args:
        seed: seed of the request's own noise; None draws a fresh one.
        cfg: strength of classifier-free guidance; 1 uses the conditional branch alone.
        timesteps: Euler steps of the flow-matching solver a patch.
        temperature: scale of the initial noise.
        max_steps: most patches to generate; None leaves the length cap to the text.
        min_steps: patches before the stop head is listened to.
        max_silence_s: silence at the end, in seconds, after which speech has run out; the
            request then ends, but not before `min_steps`. 0 waits for ever.

    Raises:
        ParameterError: a value is out of range or of the wrong type.
    """

    seed: int | None = None
    cfg: float = DEFAULT_CFG
    timesteps: int = DEFAULT_TIMESTEPS
    temperature: float = DEFAULT_TEMPERATURE
    max_steps: int | None = None
    min_steps: int = DEFAULT_MIN_STEPS
    max_silence_s: float = DEFAULT_MAX_SILENCE_S

    def __post_init__(self) -> None:
        checked: dict[str, int | float] = {
            "cfg": _real("cfg", self.cfg, *CFG_RANGE),
            "timesteps": _int("timesteps", self.timesteps, *TIMESTEPS_RANGE),
            "temperature": _real("temperature", self.temperature, *TEMPERATURE_RANGE),
            "min_steps": _int("min_steps", self.min_steps, 0, MAX_STEPS),
            "max_silence_s": _real("max_silence_s", self.max_silence_s, *MAX_SILENCE_RANGE_S),
        }
        if self.seed is not None:
            checked["seed"] = _int("seed", self.seed, 0, MAX_SEED)
        if self.max_steps is not None:
            checked["max_steps"] = _int("max_steps", self.max_steps, 1, MAX_STEPS)
        for field, value in checked.items():
            object.__setattr__(self, field, value)  # NumPy's numbers become Python's


@dataclass(frozen=True)
class BadCaseRule:
    """Which audio is too long for its text, and how often it is made again.

    Source: voxcpm 2.0.3, `VoxCPM2Model._generate_with_prompt_cache` (`retry_badcase`).

    Args:
        retry: make a bad case again, with another seed; not while streaming.
        max_times: attempts in all.
        ratio: patches a token of the text from which on its audio is a bad case.

    Raises:
        ParameterError: a value is out of range or of the wrong type.
    """

    retry: bool = False
    max_times: int = BADCASE_MAX_TIMES
    ratio: float = STEPS_PER_TOKEN

    def __post_init__(self) -> None:
        if not isinstance(self.retry, bool):
            raise ParameterError("retry_badcase", self.retry, "true or false")
        _int("retry_badcase_max_times", self.max_times, *BADCASE_MAX_TIMES_RANGE)
        _real("retry_badcase_ratio_threshold", self.ratio, *BADCASE_RATIO_RANGE)

    @property
    def n_attempts(self) -> int:
        """Attempts at a request."""
        return self.max_times if self.retry else 1

    def is_bad(self, n_patches: int, n_tokens: int) -> bool:
        """Whether so much audio is too much for a text of so many tokens."""
        return n_patches >= n_tokens * self.ratio


def another_seed(seed: int, attempt: int) -> int:
    """The seed of an attempt: the request's own for the first, 0."""
    return (seed + attempt) % (MAX_SEED + 1)


def steps_for_seconds(max_seconds: float, patch_s: float) -> int:
    """Patches that hold `max_seconds` of audio, rounded up to whole patches.

    Args:
        max_seconds: longest wanted audio, in seconds.
        patch_s: duration of one patch, in seconds.

    Raises:
        ParameterError: not a positive number, or beyond `MAX_STEPS` patches.
    """
    longest_s = MAX_STEPS * patch_s
    if not _is_real(max_seconds) or not 0 < max_seconds <= longest_s:
        raise ParameterError("max_seconds", max_seconds, f"above 0 and up to {longest_s:g}")
    # The margin keeps 0.48 s at 0.16 s a patch at three patches, not four.
    return max(1, math.ceil(max_seconds / patch_s - 1e-6))


def _int(field: str, value: Any, low: int, high: int) -> int:
    is_int = type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
    if not is_int or not low <= value <= high:
        raise ParameterError(field, value, f"a whole number from {low} to {high}")
    return int(value)


def _real(field: str, value: Any, low: float, high: float) -> float:
    if not _is_real(value) or not low <= value <= high:  # false for NaN and infinity too
        raise ParameterError(field, value, f"{low} to {high}")
    return float(value)


def _is_real(value: Any) -> bool:
    if type(value) in (float, int):  # asking an abstract class takes ten times as long
        return True
    return not isinstance(value, bool) and isinstance(value, Real)
