"""Strict reading of one object of a matrix: each key is asked for once; the rest is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from voxnative.bench.errors import BenchError
from voxnative.errors import shorten


class Fields:
    """One JSON object. ``-`` and ``_`` in keys are the same, as vLLM's flags and fields mix them.

    Args:
        content: the object.
        where: what it is, for messages: "row test_voxcpm2[0]".
    """

    def __init__(self, content: Any, where: str) -> None:
        if not isinstance(content, Mapping):
            raise BenchError(f"{where}: {shorten(content)} is not valid; valid: an object")
        self._content = {str(key).replace("-", "_"): value for key, value in content.items()}
        if len(self._content) < len(content):
            raise BenchError(f"{where}: one key stands there with '-' and with '_'")
        self._known: set[str] = set()
        self.where = where

    def text(self, key: str, default: str | None = None) -> str | None:
        """A string, or null."""
        value = self.value(key, default)
        if value is not None and not isinstance(value, str):
            raise self.error(key, value, "a string")
        return value

    def required_text(self, key: str) -> str:
        """A string that is not empty."""
        value = self.text(key)
        if not value:
            raise self.error(key, value, "a string that is not empty")
        return value

    def choice(self, key: str, valid: tuple[str, ...], default: str | None = None) -> str:
        """One of the strings in `valid`."""
        value = self.value(key, default)
        if value not in valid:
            raise self.error(key, value, ", ".join(valid))
        return str(value)

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def whole(self, key: str, default: int | None = None, minimum: int = 0) -> int | None:
        """A whole number of at least `minimum`, or null."""
        value = self.value(key, default)
        if value is not None and (type(value) is not int or value < minimum):
            raise self.error(key, value, f"a whole number of {minimum} or more")
        return value

    def positive(self, key: str, default: float) -> float:
        """A finite number above 0."""
        value = self.value(key, default)
        if not _is_positive(value):
            raise self.error(key, value, "a number above 0")
        return float(value)

    def sweep(self, key: str, kind: type[int] | type[float]) -> list[Any]:
        """One positive number or a list of them; empty where the key is absent or null."""
        value = self.value(key, None)
        if value is None:
            return []
        values = value if isinstance(value, list) else [value]
        is_whole = kind is int
        if not all(_is_positive(v) and (not is_whole or type(v) is int) for v in values):
            what = "whole numbers" if is_whole else "numbers"
            raise self.error(key, value, f"one or more {what} above 0")
        return [kind(v) for v in values]

    def mapping(self, key: str) -> dict[str, Any]:
        """An object, empty where the key is absent or null; its keys stay as they are."""
        value = self.value(key, None)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.error(key, value, "an object")
        return dict(value)

    def items(self, key: str) -> list[Any]:
        """A list, empty where the key is absent or null."""
        value = self.value(key, None)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(key, value, "a list")
        return value

    def value(self, key: str, default: Any = None) -> Any:
        """Whatever stands there."""
        self._known.add(key)
        return self._content.get(key, default)

    def present(self, *keys: str) -> tuple[str, ...]:
        """Those of `keys` that are given; all of them are valid."""
        self._known.update(keys)
        return tuple(key for key in keys if key in self._content)

    def finish(self) -> None:
        """Refuse keys that nobody asked for.

        Raises:
            BenchError: names the unknown keys and the valid ones.
        """
        unknown = sorted(self._content.keys() - self._known)
        if unknown:
            raise BenchError(
                f"{self.where}: unknown key {', '.join(unknown)}; "
                f"valid: {', '.join(sorted(self._known))}"
            )

    def error(self, key: str, value: Any, valid: str) -> BenchError:
        """The error for a value that is not valid (returned, not raised)."""
        return BenchError(f"{self.where}: {key}: {shorten(value)} is not valid; valid: {valid}")


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0
