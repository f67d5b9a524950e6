"""Pieces of text, as a language model writes them -> clauses that can be spoken at once.

The first clause may be short, since somebody waits for it; the later ones are longer, since a
whole sentence sounds better and there is audio to play meanwhile.
"""

from __future__ import annotations

import re

# Characters that a clause has before a comma ends it.
FIRST_CLAUSE_CHARS = 12
LATER_CLAUSE_CHARS = 60
# Text without punctuation is cut at a space; the model's context bounds a request.
LONGEST_CLAUSE_CHARS = 300

_CLOSERS = r"[\"'”’»)\]}』」）】》]*"
# A Latin mark ends something only before white space: "3.14", "1,000", "10:30", "a?b=c".
_SENTENCE_END = re.compile(
    rf"(?:[.!?…]+[{re.escape(_CLOSERS)}]*(?=\s)|[。！？]+[{re.escape(_CLOSERS)}]*|\n)"
)
_CLAUSE_END = re.compile(rf"[,;:]{_CLOSERS}(?=\s)|[，；：、]|\s[—–-]+(?=\s)|—")

_ABBREVIATIONS = frozenset(
    [
        *("mr", "mrs", "ms", "dr", "prof", "sr", "jr", "st", "mt", "vs", "etc", "inc", "ltd"),
        *("co", "corp", "dept", "est", "fig", "vol", "approx", "e.g", "i.e", "a.m", "p.m"),
        *("cf", "jan", "feb", "apr", "aug", "sep", "sept", "oct", "nov", "dec"),
    ]
)


class ClauseSplitter:
    """Collects text and gives it back clause by clause; nothing is lost or reordered.

    A mark at the very end of the text so far waits for what follows it, unless it is Chinese.
    """

    def __init__(self) -> None:
        self._text = ""
        self._n_clauses = 0

    @property
    def n_pending_chars(self) -> int:
        """Characters that wait for the end of their clause."""
        return len(self._text)

    def feed(self, piece: str) -> list[str]:
        """Take the next piece; returns the clauses that it completes, mostly none or one."""
        self._text += piece
        return self._take()

    def flush(self) -> list[str]:
        """End of the text: returns what is left."""
        clauses = self._take()
        rest, self._text = self._text.strip(), ""
        return [*clauses, rest] if _is_speakable(rest) else clauses

    def _take(self) -> list[str]:
        clauses = []
        while (end := self._end()) is not None:
            clause, self._text = self._text[:end].strip(), self._text[end:]
            if _is_speakable(clause):
                clauses.append(clause)
                self._n_clauses += 1
        return clauses

    def _end(self) -> int | None:
        """Length of the first complete clause of the text so far."""
        least = LATER_CLAUSE_CHARS if self._n_clauses else FIRST_CLAUSE_CHARS
        ends = [
            match.end()
            for match in _SENTENCE_END.finditer(self._text)
            if not _is_abbreviation(self._text[: match.end()], self._text[match.end() :])
        ][:1]
        ends += [m.end() for m in _CLAUSE_END.finditer(self._text) if m.end() >= least][:1]
        if ends:
            return min(ends)
        if len(self._text) > LONGEST_CLAUSE_CHARS:
            space = self._text.rfind(" ", 1, LONGEST_CLAUSE_CHARS)
            return space if space > 0 else LONGEST_CLAUSE_CHARS
        return None


def _is_abbreviation(text: str, rest: str) -> bool:
    """Whether the full stop at the end of `text` belongs to a word or a number before it."""
    if not text.endswith(".") or text.endswith(".."):
        return False
    word = re.split(r"[\s(\"'“‘]", text[:-1])[-1].lower()
    if word in _ABBREVIATIONS:
        # "at 5 p.m. We left": a capital behind "p.m." or "etc." starts a sentence.
        starts_sentence = rest.lstrip()[:1].isupper()
        return not (starts_sentence and word in ("a.m", "p.m", "etc", "inc", "ltd", "co"))
    initials = re.fullmatch(r"(?:[a-z]\.)*[a-z]", word)  # "J. Smith", "U.S. army", but not "I."
    numbered = text.strip() == f"{word}." and word.isdigit()  # "1. First"
    return numbered or (initials is not None and word != "i")


def _is_speakable(clause: str) -> bool:
    """Whether there is more than marks: closing quotes may come in a later piece."""
    return any(char.isalnum() for char in clause)
