"""Pieces of text, as a language model writes them -> clauses that can be spoken at once.

The first clause may be short, since somebody waits for it; the later ones are longer, since a
whole sentence sounds better and there is audio to play meanwhile.
"""

from __future__ import annotations

from voxnative.sentences import clause_end, is_speakable, sentence_end

# Characters that a clause has before a comma ends it.
FIRST_CLAUSE_CHARS = 12
LATER_CLAUSE_CHARS = 60
# Text without punctuation is cut at a space, so that somebody hears it before it ends.
LONGEST_CLAUSE_CHARS = 300


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
        return [*clauses, rest] if is_speakable(rest) else clauses

    def _take(self) -> list[str]:
        clauses = []
        while (end := self._end()) is not None:
            clause, self._text = self._text[:end].strip(), self._text[end:]
            if is_speakable(clause):
                clauses.append(clause)
                self._n_clauses += 1
        return clauses

    def _end(self) -> int | None:
        """Length of the first complete clause of the text so far."""
        least = LATER_CLAUSE_CHARS if self._n_clauses else FIRST_CLAUSE_CHARS
        ends = (sentence_end(self._text), clause_end(self._text, least=least))
        complete = [end for end in ends if end is not None]
        if complete:
            return min(complete)
        if len(self._text) > LONGEST_CLAUSE_CHARS:
            space = self._text.rfind(" ", 1, LONGEST_CLAUSE_CHARS)
            return space if space > 0 else LONGEST_CLAUSE_CHARS
        return None
