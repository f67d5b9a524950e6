"""What the rules of the English front end share: their form, and two helpers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]


def longest_first(names: Iterable[str]) -> str:
    """Alternatives of a regular expression, longer names before their own beginnings."""
    return "|".join(sorted(map(re.escape, names), key=len, reverse=True))


def closing_stop(match: re.Match[str]) -> str:
    """The full stop of an abbreviation that also ends the sentence."""
    rest = match.string[match.end() :]
    return "." if match[0].endswith(".") and re.match(r"\s+[A-Z]|\s*$", rest) else ""
