"""Clauses come as soon as they are complete, whatever pieces the text arrives in."""

from __future__ import annotations

import pytest

from voxnative.serving.clauses import LONGEST_CLAUSE_CHARS, ClauseSplitter


def split(*pieces: str) -> list[str]:
    splitter = ClauseSplitter()
    return [clause for piece in pieces for clause in splitter.feed(piece)] + splitter.flush()


TEXTS = [
    ("Hello there. How are you?", ["Hello there.", "How are you?"]),
    ("Well, that is that. Yes!", ["Well, that is that.", "Yes!"]),
    ("To be honest, I do not know.", ["To be honest,", "I do not know."]),
    ("Pi is 3.14, it costs 1,000.", ["Pi is 3.14, it costs 1,000."]),
    ("Dr. Smith met Mrs. Jones. They talked.", ["Dr. Smith met Mrs. Jones.", "They talked."]),
    ("Use fruit, e.g. apples. Done.", ["Use fruit, e.g. apples.", "Done."]),
    ("J. R. Tolkien wrote. So did I. Yes.", ["J. R. Tolkien wrote.", "So did I.", "Yes."]),
    ("We left at 5 p.m. It rained.", ["We left at 5 p.m.", "It rained."]),
    ("1. Open the box. 2. Look inside.", ["1. Open the box.", "2. Look inside."]),
    ('She said "Go!" He stayed.', ['She said "Go!"', "He stayed."]),
    ("What?! No...", ["What?!", "No..."]),
    ("你好。今天天气很好，我们出去走走吧！", ["你好。", "今天天气很好，我们出去走走吧！"]),
    ("First line\nsecond line", ["First line", "second line"]),
    ("No mark at the end", ["No mark at the end"]),
    ("See a?b=c and example.com now", ["See a?b=c and example.com now"]),
    ("(Hush!) She slept.", ["(Hush!)", "She slept."]),
    ("他说：“你好。”她笑了。", ["他说：“你好。”", "她笑了。"]),
    ("... -- !", []),
    ("", []),
    ("  \n ", []),
]


@pytest.mark.parametrize(("text", "clauses"), TEXTS)
def test_a_whole_text(text: str, clauses: list[str]) -> None:
    assert split(text) == clauses


@pytest.mark.parametrize(("text", "_"), TEXTS)
def test_no_visible_character_is_lost(text: str, _: object) -> None:
    for pieces in ([text], list(text), text.split(" ")):
        joiner = " " if pieces == text.split(" ") else ""
        given = joiner.join(pieces)
        kept = "".join("".join(split(given)).split())
        assert sorted(filter(str.isalnum, kept)) == sorted(filter(str.isalnum, given))


@pytest.mark.parametrize(
    ("text", "unbroken"),
    [
        ("Pi is 3.14 and so on.", "3.14"),
        ("It costs 1,000 dollars, said the man.", "1,000"),
        ("J. R. Tolkien wrote it.", "J. R. Tolkien"),
        ("The U.S. army went home.", "U.S. army"),
        ("Fruit, e.g. apples, is good for you.", "e.g. apples"),
        ("Meet me at 10:30 sharp, please.", "10:30"),
    ],
)
def test_marks_inside_words_and_numbers_end_nothing(text: str, unbroken: str) -> None:
    for pieces in ([text], list(text)):
        assert any(unbroken in clause for clause in split(*pieces))


def test_pieces_of_one_character_give_the_same_sentences() -> None:
    text = "Hello there. This is a test of Dr. Smith. It is fine! Is it? Yes."
    assert split(*text) == split(text)


def test_the_first_clause_comes_before_the_text_ends() -> None:
    splitter = ClauseSplitter()
    assert splitter.feed("I think") == []
    assert splitter.feed(" so,") == []  # the comma may be that of "1,000"
    assert splitter.feed(" that we") == []  # too short to be spoken alone
    assert splitter.feed(" should go, ") == ["I think so, that we should go,"]
    assert splitter.feed("now") == []


def test_a_chinese_mark_does_not_wait() -> None:
    assert ClauseSplitter().feed("你好。") == ["你好。"]


def test_later_clauses_are_not_cut_at_short_commas() -> None:
    assert split("Good morning, all. One, two, three, four, five, six. Done.") == [
        "Good morning,",
        "all.",
        "One, two, three, four, five, six.",
        "Done.",
    ]


def test_closing_quotes_that_come_late_are_not_spoken_alone() -> None:
    splitter = ClauseSplitter()
    assert splitter.feed("他说：“你好。") == ["他说：“你好。"]
    assert splitter.feed("”") == []
    assert splitter.flush() == []


def test_text_without_marks_is_cut_at_a_space() -> None:
    clauses = split("word " * 200)
    assert len(clauses) > 1
    assert all(len(clause) <= LONGEST_CLAUSE_CHARS for clause in clauses)
    assert " ".join(clauses) == ("word " * 200).strip()
    assert all(len(clause) <= LONGEST_CLAUSE_CHARS for clause in split("x" * 1000))


def test_waiting_characters_are_counted() -> None:
    splitter = ClauseSplitter()
    splitter.feed("One. Tw")
    assert splitter.n_pending_chars == len(" Tw")
