"""A long text -> pieces that a model speaks well, each one request.

Sentences are packed into pieces of at most so many tokens; a sentence that is longer is cut at a
clause, a clause at a space, a word only where there is no space (Chinese without punctuation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from voxnative.errors import ParameterError
from voxnative.sentences import clause_end, ends_paragraph, is_speakable, sentence_spans

# About 25 s of speech with a vocabulary of words or Chinese characters, 5 s with one of letters.
PIECE_TOKENS = 80
PIECE_TOKENS_RANGE = (20, 2000)
# A piece of less than this share of the most goes on beyond its paragraph: models speak a lone
# short sentence worse than one with company.
_LEAST_SHARE = 4
_LONGEST_TOKEN_CHARS = 16


@dataclass(frozen=True)
class Piece:
    """A part of a long text.

    Attributes:
        index: 0 for the first of the text.
        start: first character, in the whole text.
        end: behind the last character, in the whole text.
        text: ``whole[start:end]``.
    """

    index: int
    start: int
    end: int
    text: str


def split_text(text: str, max_tokens: int, count_tokens: Callable[[str], int]) -> list[Piece]:
    """Cut a text into pieces; nothing that can be spoken is left out.

    A text that fits is one piece, as it is. A line of marks alone (a scene break) ends a piece
    and is not spoken.

    Args:
        text: of any length.
        max_tokens: most tokens of a piece.
        count_tokens: tokens of a part of the text.

    Raises:
        ParameterError: `max_tokens` is out of range.
    """
    low, high = PIECE_TOKENS_RANGE
    if (
        isinstance(max_tokens, bool)
        or not isinstance(max_tokens, int)
        or max_tokens not in range(low, high + 1)
    ):
        raise ParameterError("piece_tokens", max_tokens, f"a whole number from {low} to {high}")
    if len(text) <= _window(max_tokens) and count_tokens(text) <= max_tokens:
        return [Piece(0, 0, len(text), text)]
    pieces: list[Piece] = []
    packed: tuple[int, int] | None = None
    n_packed = 0
    for start, end in sentence_spans(text):
        if not is_speakable(text[start:end]):
            if packed and text[start:end].strip() and text[end - 1] == "\n":
                pieces.append(_piece(text, *packed))
                packed = None
            continue
        for begin, stop, n_tokens in _fitting(text, start, end, max_tokens, count_tokens):
            if packed and n_packed + n_tokens > max_tokens:
                pieces.append(_piece(text, *packed))
                packed = None
            n_packed = n_packed + n_tokens if packed else n_tokens
            packed = (packed[0] if packed else begin, stop)
        if packed and ends_paragraph(text, end) and n_packed * _LEAST_SHARE >= max_tokens:
            pieces.append(_piece(text, *packed))
            packed = None
    if packed:
        pieces.append(_piece(text, *packed))
    if not pieces:  # nothing but marks: the request's own check says so
        return [Piece(0, 0, len(text), text)]
    return [replace(piece, index=index) for index, piece in enumerate(pieces)]


def _piece(text: str, start: int, end: int) -> Piece:
    """The span without white space around it."""
    start += len(text[start:end]) - len(text[start:end].lstrip())
    end = start + len(text[start:end].rstrip())
    return Piece(0, start, end, text[start:end])


def _fitting(
    text: str, start: int, end: int, max_tokens: int, count_tokens: Callable[[str], int]
) -> Iterator[tuple[int, int, int]]:
    """One sentence as spans of at most `max_tokens`, with the tokens of each."""
    while start < end:
        window_end = min(end, start + _window(max_tokens))
        n_tokens = count_tokens(text[start:window_end])
        if window_end == end and n_tokens <= max_tokens:
            yield start, end, n_tokens
            return
        longest = window_end
        if n_tokens > max_tokens:
            longest = _longest_prefix(text, start, window_end, max_tokens, count_tokens)
        # A quarter of the budget at least, so that a list does not fall apart into its words.
        cut = start + (_last_clause_end(text[start:longest], (longest - start) // 4) or 0)
        if cut == start:
            space = text.rfind(" ", start + 1, longest)
            cut = space if space > start else longest
        if is_speakable(text[start:cut]):
            yield start, cut, count_tokens(text[start:cut])
        start = cut


def _longest_prefix(
    text: str, start: int, end: int, max_tokens: int, count_tokens: Callable[[str], int]
) -> int:
    """Largest `cut` for which ``text[start:cut]`` has at most `max_tokens` tokens."""
    fits, exceeds = start + 1, end
    while exceeds - fits > 1:
        middle = (fits + exceeds) // 2
        if count_tokens(text[start:middle]) <= max_tokens:
            fits = middle
        else:
            exceeds = middle
    return fits


def _last_clause_end(text: str, least: int) -> int | None:
    """The last end of a clause that has at least so many characters before it."""
    last = None
    while (cut := clause_end(text, least=least if last is None else last + 1)) is not None:
        last = cut
    return last


def _window(max_tokens: int) -> int:
    """Characters that are looked at for one piece, so that cutting takes time in proportion."""
    return _LONGEST_TOKEN_CHARS * max_tokens
