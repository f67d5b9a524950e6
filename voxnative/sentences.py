"""Where sentences and clauses end, in English, Chinese and mixtures of both.

The rules look at a text from a position on, so that they serve a text that is still being written
(`serving/clauses.py`) as well as a whole one (`pieces.py`). A Latin mark ends something only
before white space: "3.14", "1,000", "10:30" and "a?b=c.d" stay whole, and so do addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_CLOSERS = r"[\"'”’»)\]}』」）】》]*"
_SENTENCE_END = re.compile(rf"[.!?…]+{_CLOSERS}(?=\s)|[。！？]+{_CLOSERS}|\n")
_CLAUSE_END = re.compile(rf"[,;:]{_CLOSERS}(?=\s)|[，；：、]|\s[—–-]+(?=\s)|—")
_NEXT_CHAR = re.compile(r"\s*(\S)")
_NEXT_WORD = re.compile(r"\s*([A-Za-z']+)")
_BLANK_LINE = re.compile(r"[^\S\n]*\n")

_ABBREVIATIONS = frozenset(
    [
        *("mr", "mrs", "ms", "dr", "prof", "sr", "jr", "st", "mt", "vs", "etc", "inc", "ltd"),
        *("co", "corp", "dept", "est", "fig", "vol", "approx", "e.g", "i.e", "a.m", "p.m"),
        *("cf", "jan", "feb", "apr", "aug", "sep", "sept", "oct", "nov", "dec"),
        *("gen", "col", "capt", "lt", "sgt", "rev", "hon", "gov", "sen", "rep", "ph.d"),
    ]
)
# A capital behind one of these starts a sentence: "at 5 p.m. We left".
_MAY_END_A_SENTENCE = frozenset(["a.m", "p.m", "etc", "inc", "ltd", "co", "ph.d"])
# Abbreviations before a number and words otherwise: "No. 5", but "No. I will not."
_NUMBERED = frozenset(["no", "nos", "p", "pp", "ch", "art", "sec", "op"])
# Words behind initials that start a sentence ("in the U.S. It is big") rather than a name.
_STARTERS = frozenset(
    [
        *("a", "an", "and", "as", "at", "but", "for", "he", "her", "his", "how", "i", "if", "in"),
        *("it", "its", "my", "no", "now", "on", "our", "she", "so", "some", "that", "the", "then"),
        *("there", "these", "they", "this", "those", "we", "what", "when", "where", "who", "why"),
        *("yes", "you", "your"),
    ]
)

_LONGEST_WORD_CHARS = 64  # looked at in front of a mark
# A line at least as long as this may have been wrapped by an editor; a heading is shorter.
WRAPPED_LINE_CHARS = 40


def sentence_end(text: str, start: int = 0, *, wrapped_lines: bool = False) -> int | None:
    """End of the first sentence of ``text[start:]``; None where none is complete.

    Args:
        text: may be the beginning of a longer text: a mark at its very end waits for what follows.
        start: where the sentence starts.
        wrapped_lines: a line break behind a long line is a space, not an end.
    """
    for match in _SENTENCE_END.finditer(text, start):
        if match[0] == "\n":
            if not (wrapped_lines and _is_wrapped(text, match.start())):
                return match.end()
        elif not _goes_on(text, start, match):
            return match.end()
    return None


def clause_end(text: str, start: int = 0, least: int = 0) -> int | None:
    """End of the first clause of ``text[start:]`` that has `least` characters; None without one."""
    for match in _CLAUSE_END.finditer(text, start):
        if match.end() - start >= least:
            return match.end()
    return None


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """The sentences of a whole text, as spans that follow each other without a gap."""
    start = 0
    while (end := sentence_end(text, start, wrapped_lines=True)) is not None:
        yield start, end
        start = end
    if start < len(text):
        yield start, len(text)


def ends_paragraph(text: str, end: int) -> bool:
    """Whether a blank line, or the end of the text, follows the sentence that ends at `end`."""
    if end >= len(text) or text[end - 1] == "\n":
        return end >= len(text) or _BLANK_LINE.match(text, end) is not None
    line_break = _BLANK_LINE.match(text, end)
    return line_break is not None and _BLANK_LINE.match(text, line_break.end()) is not None


def is_speakable(text: str) -> bool:
    """Whether there is anything to say: a letter or a digit of any script."""
    return any(char.isalnum() for char in text)


def _goes_on(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether the mark ends no sentence: an abbreviation's stop, or a question that is quoted."""
    marks = match[0].rstrip("\"'”’»)]}』」）】》")
    if marks[0] in "。！？":
        return False
    following = _NEXT_CHAR.match(text, match.end())
    if marks != match[0] and marks[-1] in "!?":  # "Go!" she said
        return following is None or following[1].islower()
    if match[0] != ".":
        return False
    begin = max(start, match.start() - _LONGEST_WORD_CHARS)
    word = re.split(r"[\s(\"'“‘]", text[begin : match.start()])[-1].lower()
    if word in _MAY_END_A_SENTENCE:
        return following is None or not following[1].isupper()
    if word in _ABBREVIATIONS:
        return True
    if word in _NUMBERED:
        return following is None or following[1].isdigit()
    if word.isdigit() and not text[start : match.start()].strip().removesuffix(word):
        return True  # "1. Open the box."
    if re.fullmatch(r"(?:[a-z]\.)+[a-z]", word):  # "the U.S. army"
        next_word = _NEXT_WORD.match(text, match.end())
        return next_word is None or not (
            next_word[1].istitle() and next_word[1].lower() in _STARTERS
        )
    return re.fullmatch("[a-hj-z]", word) is not None  # "J. Smith", but not "so did I."


def _is_wrapped(text: str, line_break: int) -> bool:
    """Whether the line break at this position only keeps a paragraph's lines short."""
    line = text[text.rfind("\n", 0, line_break) + 1 : line_break].strip()
    if len(line) < WRAPPED_LINE_CHARS:
        return False
    return line_break + 1 < len(text) and _BLANK_LINE.match(text, line_break + 1) is None
