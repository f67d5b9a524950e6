"""A long text falls into pieces that fit, in order, with nothing that can be spoken left out."""

from __future__ import annotations

from itertools import pairwise

import pytest

from voxnative.errors import ParameterError
from voxnative.pieces import Piece, split_text

CHAPTER = """Chapter One

It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of
foolishness. "Go!" she said. Yes.

* * *

We live in the U.S. It is big. See https://a.b/c?d=e.f for No. 5. Done.

你好。今天天气很好，我们出去走走吧！真的吗？这是一段没有标点的很长的文字它必须在某个地方被切开否则放不下
"""


def texts(text: str, max_tokens: int = 80) -> list[str]:
    pieces = split_text(text, max_tokens, len)
    check(text, pieces, max_tokens)
    return [piece.text for piece in pieces]


def check(text: str, pieces: list[Piece], max_tokens: int) -> None:
    """What holds for every text."""
    assert [piece.index for piece in pieces] == list(range(len(pieces)))
    for piece in pieces:
        assert piece.text == text[piece.start : piece.end]
        assert len(piece.text) <= max_tokens
    for one, other in pairwise(pieces):
        assert one.end <= other.start
    spoken = "".join(piece.text for piece in pieces)
    assert list(filter(str.isalnum, spoken)) == list(filter(str.isalnum, text))


@pytest.mark.parametrize("max_tokens", [20, 40, 80, 300, 2000])
def test_every_size(max_tokens: int) -> None:
    assert texts(CHAPTER, max_tokens)


def test_sentences_are_packed() -> None:
    assert texts("One. " * 30) == [("One. " * 16).strip(), ("One. " * 14).strip()]


def test_a_text_that_fits_stays_as_it_is() -> None:
    text = "  One.\n\n😀 Two. "
    assert split_text(text, 80, len) == [Piece(0, 0, len(text), text)]


def test_a_paragraph_ends_a_piece_unless_it_is_short() -> None:
    long, short = "This paragraph has thirty chars.", "Yes."
    filler = "\n\n" + "x " * 40
    assert texts(f"{long}\n\n{long}{filler}")[:2] == [long, long]
    assert texts(f"{short}\n\n{short}\n\n{long}{filler}")[0] == f"{short}\n\n{short}\n\n{long}"


def test_a_line_of_marks_ends_a_piece_and_is_not_spoken() -> None:
    filler = "\n\n" + "x " * 40
    assert texts(f"Yes.\n\n* * *\n\nNo.{filler}")[:2] == ["Yes.", "No."]


def test_a_clause_goes_before_a_fuller_piece() -> None:
    clauses = [
        "Then he came back without a word,",
        "and his brother was waiting for him at the small house.",
    ]
    assert texts(" ".join(clauses), 80) == clauses


def test_a_long_sentence_is_cut_at_clauses_then_at_spaces() -> None:
    text = "the quick brown fox, the lazy dog, and the cat that nobody has ever seen"
    assert texts(text, 40) == [
        "the quick brown fox, the lazy dog,",
        "and the cat that nobody has ever seen",
    ]
    assert texts("one two three four five six seven", 20) == [
        "one two three four",
        "five six seven",
    ]


def test_chinese_is_cut_at_its_commas_and_anywhere_without_any() -> None:
    clauses = ["今天天气很好，我们出去走走吧，", "我想去公园看花，你呢"]
    assert texts("".join(clauses), 20) == clauses
    assert [len(text) for text in texts("字" * 50, 20)] == [20, 20, 10]


def test_tokens_may_be_fewer_than_characters() -> None:
    def words(text: str) -> int:
        return len(text.split())

    pieces = split_text("one two three. " * 20, 30, words)
    assert [words(piece.text) for piece in pieces] == [30, 30]


@pytest.mark.parametrize("text", ["", " ", "...", "* * *\n" * 50, "😀" * 100])
def test_nothing_to_say_is_one_piece_for_the_request_to_refuse(text: str) -> None:
    assert [piece.text for piece in split_text(text, 80, len)] == [text]


@pytest.mark.parametrize("max_tokens", [0, 19, 2001, 80.0, True, None])
def test_the_range_of_the_budget(max_tokens: int) -> None:
    with pytest.raises(ParameterError, match="field 'piece_tokens'"):
        split_text("a", max_tokens, len)


@pytest.mark.parametrize("text", [CHAPTER, "word ", "x"])
def test_a_book_takes_work_in_proportion(text: str) -> None:
    """The work is the characters that are counted as tokens; time would depend on the machine."""

    def work(n_chars: int) -> int:
        counted = 0

        def count(part: str) -> int:
            nonlocal counted
            counted += len(part)
            return len(part)

        split_text(text * (n_chars // len(text)), 80, count)
        return counted

    # Ten times the text: quadratic work would be a hundred times as much.
    assert 8 * work(20_000) < work(200_000) < 12 * work(20_000)
