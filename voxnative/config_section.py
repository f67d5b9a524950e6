"""Typed reading of one JSON object in which every key must be known."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voxnative.errors import CheckpointError, shorten

_REQUIRED = object()


def read_object(file: Path, beside: str) -> dict[str, Any]:
    """The JSON object that a file holds.

    Args:
        file: to read.
        beside: what a directory of its kind holds, for the message.

    Raises:
        CheckpointError: no such file, not JSON, or no object.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"cannot read {file}: {error.strerror}; {beside}", path=file
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}", path=file) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} does not hold a JSON object", path=file)
    return content


class Section:
    """One object of a JSON file: each key is asked for once, by type; the rest is refused.

    Args:
        content: the object.
        name: dotted path of the object inside the file, "" for the file itself.
        path: the file, for messages.
    """

    def __init__(self, content: Mapping[str, Any], name: str, path: str | Path | None) -> None:
        self._content = content
        self._name = name
        self._path = path
        self._known: list[str] = []

    def integer(self, key: str, default: Any = _REQUIRED, *, minimum: int = 1) -> int:
        """A whole number of at least `minimum`."""
        value = self._get(key, default)
        if type(value) is not int or value < minimum:
            raise self.error(key, value, f"an integer of {minimum} or more")
        return value

    def optional_integer(self, key: str, default: int | None = None) -> int | None:
        """A whole number of at least 1, or null."""
        return None if self._get(key, default) is None else self.integer(key, default)

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        """A finite number."""
        value = self._get(key, default)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.error(key, value, "a finite number")
        return float(value)

    def flag(self, key: str, default: Any = _REQUIRED) -> bool:
        """true or false."""
        value = self._get(key, default)
        if type(value) is not bool:
            raise self.error(key, value, "true or false")
        return value

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        """A string."""
        value = self._get(key, default)
        if type(value) is not str:
            raise self.error(key, value, "a string")
        return value

    def optional_text(self, key: str) -> str | None:
        """A string, or null; null where the key is absent."""
        return None if self._get(key, None) is None else self.text(key)

    def texts(self, key: str, default: Any = _REQUIRED) -> tuple[str, ...]:
        """A list of strings."""
        values = self._list(key, default)
        if not all(type(value) is str for value in values):
            raise self.error(key, values, "a list of strings")
        return tuple(values)

    def choice(self, key: str, valid: tuple[str, ...], default: Any = _REQUIRED) -> str:
        """One of the strings in `valid`."""
        value = self._get(key, default)
        if value not in valid:
            raise self.error(key, value, ", ".join(f'"{option}"' for option in valid))
        return str(value)

    def integers(self, key: str, default: Any = _REQUIRED) -> tuple[int, ...]:
        """A list of whole numbers of at least 1."""
        values = self._list(key, default)
        if not all(type(value) is int and value >= 1 for value in values):
            raise self.error(key, values, "a list of integers of 1 or more")
        return tuple(values)

    def optional_integers(self, key: str, default: Any = _REQUIRED) -> tuple[int, ...] | None:
        """A list of whole numbers of at least 1, or null."""
        return None if self._get(key, default) is None else self.integers(key, default)

    def numbers(self, key: str, default: Any = _REQUIRED) -> tuple[float, ...]:
        """A list of finite numbers."""
        values = self._list(key, default)
        if not all(type(value) in (int, float) and math.isfinite(value) for value in values):
            raise self.error(key, values, "a list of finite numbers")
        return tuple(float(value) for value in values)

    def section(self, key: str, *, optional: bool = False) -> Section:
        """A nested object; with `optional`, an empty one where the key is absent or null."""
        value = self._get(key, None if optional else _REQUIRED)
        if value is None and optional:
            value = {}
        if not isinstance(value, Mapping):
            raise self.error(key, value, "an object")
        return Section(value, self._full(key), self._path)

    def ignore(self, *keys: str) -> None:
        """Accept keys that say nothing about the networks."""
        self._known.extend(keys)

    def finish(self) -> None:
        """Refuse keys that nobody asked for.

        Raises:
            CheckpointError: names the unknown keys and every valid one.
        """
        unknown = sorted(set(self._content) - set(self._known))
        if unknown:
            names = ", ".join(self._full(key) for key in unknown)
            valid = ", ".join(sorted(set(self._known)))
            raise CheckpointError(
                f"unknown key {names}{self._where()}; valid: {valid}", path=self._path
            )

    def error(self, key: str, value: object, valid: str) -> CheckpointError:
        """The error for a value that is not valid (returned, not raised)."""
        return CheckpointError(
            f"key {self._full(key)}: {shorten(value)} is not valid{self._where()}; valid: {valid}",
            path=self._path,
        )

    def _get(self, key: str, default: Any) -> Any:
        self._known.append(key)
        if key in self._content:
            return self._content[key]
        if default is _REQUIRED:
            raise CheckpointError(
                f"key {self._full(key)} is missing{self._where()}", path=self._path
            )
        return default

    def _list(self, key: str, default: Any) -> list[Any] | tuple[Any, ...]:
        values = self._get(key, default)
        if not isinstance(values, list | tuple) or not values:
            raise self.error(key, values, "a list that is not empty")
        return values

    def _full(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key

    def _where(self) -> str:
        return f" in {self._path}" if self._path is not None else ""
