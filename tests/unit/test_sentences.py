"""Where sentences end: abbreviations, numbers, addresses, quotations, Chinese and mixtures."""

from __future__ import annotations

import pytest

from voxnative.sentences import ends_paragraph, is_speakable, sentence_spans

TEXTS = [
    ("Dr. Smith met Mrs. Jones. They talked.", ["Dr. Smith met Mrs. Jones.", "They talked."]),
    ("We left at 5 p.m. It rained.", ["We left at 5 p.m.", "It rained."]),
    ("Is it 10 a.m. or 10 p.m.? I forgot.", ["Is it 10 a.m. or 10 p.m.?", "I forgot."]),
    ("Use fruit, e.g. apples. Done.", ["Use fruit, e.g. apples.", "Done."]),
    ("J. R. R. Tolkien wrote. So did I. Yes.", ["J. R. R. Tolkien wrote.", "So did I.", "Yes."]),
    ("Pi is 3.14. It costs 1,000.50 dollars.", ["Pi is 3.14.", "It costs 1,000.50 dollars."]),
    ("He scored 7.5. She scored 8.", ["He scored 7.5.", "She scored 8."]),
    (
        "See https://example.com/a.b?c=d.e. It works.",
        ["See https://example.com/a.b?c=d.e.", "It works."],
    ),
    ("Mail a.b@example.org. Thanks!", ["Mail a.b@example.org.", "Thanks!"]),
    ("The U.S. army went home. I stayed.", ["The U.S. army went home.", "I stayed."]),
    ("I live in the U.S. It is big.", ["I live in the U.S.", "It is big."]),
    ("The U.S. Senate met. It was late.", ["The U.S. Senate met.", "It was late."]),
    ("Chapter No. 5 is short. Read it.", ["Chapter No. 5 is short.", "Read it."]),
    ("No. I will not. See p. 12.", ["No.", "I will not.", "See p. 12."]),
    ("See Fig. 3 on pp. 4 and 5. Then stop.", ["See Fig. 3 on pp. 4 and 5.", "Then stop."]),
    ("She has a Ph.D. She teaches.", ["She has a Ph.D.", "She teaches."]),
    ("What?! No... Well.", ["What?!", "No...", "Well."]),
    ("“Where are you?” she asked. “Here.”", ["“Where are you?” she asked.", "“Here.”"]),
    ('"I am late!" cried Ann. She ran.', ['"I am late!" cried Ann.', "She ran."]),
    ('She said "Go!" He stayed.', ['She said "Go!"', "He stayed."]),
    ("good morning. what now?", ["good morning.", "what now?"]),
    ("1. Open the box. 2. Look inside.", ["1. Open the box.", "2. Look inside."]),
    ("你好。今天天气很好，我们走吧！真的吗？", ["你好。", "今天天气很好，我们走吧！", "真的吗？"]),
    ("他说：“你好。”她笑了。", ["他说：“你好。”", "她笑了。"]),
    (
        "我用 Python 3.11 写代码。It works well. 真的！",
        ["我用 Python 3.11 写代码。", "It works well.", "真的！"],
    ),
    ("版本是v2.0，价格是3.5元。很便宜。", ["版本是v2.0，价格是3.5元。", "很便宜。"]),
    ("Chapter One\nIt was dark.", ["Chapter One", "It was dark."]),
    (
        "This line was wrapped by an editor at some\nwidth or other. Yes.",
        ["This line was wrapped by an editor at some\nwidth or other.", "Yes."],
    ),
    (
        "A paragraph without a full stop at its very end\n\nAnother one.",
        ["A paragraph without a full stop at its very end", "", "Another one."],
    ),
    ("no mark", ["no mark"]),
    ("", []),
]


@pytest.mark.parametrize(("text", "sentences"), TEXTS)
def test_sentences(text: str, sentences: list[str]) -> None:
    spans = list(sentence_spans(text))
    assert [text[start:end].strip() for start, end in spans] == sentences
    assert "".join(text[start:end] for start, end in spans) == text


def test_paragraphs() -> None:
    text = "One. Two.\n\nThree.\n  \nFour.\nFive."
    ends = {text[start:end].strip(): end for start, end in sentence_spans(text)}
    found = {name for name, end in ends.items() if ends_paragraph(text, end)}
    assert found - {""} == {"Two.", "Three.", "Five."}


@pytest.mark.parametrize("text", ["a", "7", "你", "é", "٣", "...x", "한"])
def test_speakable(text: str) -> None:
    assert is_speakable(text)


@pytest.mark.parametrize("text", ["", " ", "...", "?!", "😀", "* * *", "—", "。", "$%&"])
def test_not_speakable(text: str) -> None:
    assert not is_speakable(text)
