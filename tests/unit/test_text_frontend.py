"""voxnative.text_frontend: everything becomes words of the shipped checkpoint's alphabet."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from tests.perf.load import TEXT
from voxnative.spoken_numbers import spell_number
from voxnative.text_frontend import RULES, SAYABLE, _spelled_out, is_plain, normalize


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Hello there.", "Hello there."),
        ("don't tongue-in-cheek", "don't tongue-in-cheek"),
        ("3 of 12", "three of twelve"),
        ("1,234 people", "one thousand two hundred and thirty four people"),
        ("3.14", "three point one four"),
        ("007", "zero zero seven"),
        ("in 1999", "in nineteen ninety nine"),
        ("the 1990s and the '80s", "the nineteen nineties and the eighties"),
        ("the 21st", "the twenty first"),
        ("-5 and 10-20", "minus five and ten to twenty"),
        ("5–7 days", "five to seven days"),
        ("3/4 and 1/2", "three fourths and one half"),
        ("25%", "twenty five percent"),
        (
            "$12.50 or €1 or £1.5m",
            "twelve dollars and fifty cents or one euro or one point five million pounds",
        ),
        ("2 kg, 1 km and 5°C", "two kilograms, one kilometer and five degrees Celsius"),
        ("at 10:00 or 3:05 pm", "at ten o'clock or three oh five pee em"),
        ("At 9 a.m. Now go.", "At nine ay em. Now go."),
        ("2024-03-15", "March fifteenth, twenty twenty four"),
        ("call 555-0199", "call five five five, zero one nine nine"),
        ("v2.0.1", "vee two point zero point one"),
        ("No. 5 is #1", "number five is number one"),
    ],
)
def test_numbers_become_words(text: str, spoken: str) -> None:
    assert normalize(text) == spoken


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Dr. Smith met Mrs. Jones.", "doctor Smith met missus Jones."),
        ("cats, dogs, etc.", "cats, dogs, et cetera."),
        ("e.g. this", "for example this"),
        ("NASA has CPUs", "nasa has see pee yous"),
        ("vitamin C", "vitamin see"),
        ("A plan, and I know it", "A plan, and I know it"),
        ("a@b.org", "a at bee dot org"),
        ("https://www.example.org/path.", "www dot example dot org slash path."),
    ],
)
def test_abbreviations_become_words(text: str, spoken: str) -> None:
    assert normalize(text) == spoken


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("salt & pepper", "salt and pepper"),
        ("x_y", "ex underscore why"),
        ("He said: “Go!”", "He said, Go!"),
        ("(quietly) done… yes", "quietly, done. yes"),
        ("one — two", "one, two"),
        ("wait...what?!", "wait. what?"),
        ("½ cup", "one half cup"),
    ],
)
def test_symbols_become_words_or_pauses(text: str, spoken: str) -> None:
    assert normalize(text) == spoken


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("café naïve Größe", "cafe naive Grosse"),
        ("Привет", "Privet"),
        ("北京", "BeiJing"),
        ("A☃B", "A snowman bee"),
        ("१२", "twelve"),
        ("zero\u200bwidth", "zerowidth"),
    ],
)
def test_foreign_characters_are_spelled_or_named(text: str, spoken: str) -> None:
    assert normalize(text) == spoken


def test_every_character_below_0x2800_becomes_sayable_and_is_not_lost() -> None:
    import unicodedata

    silent = {"Cc", "Cf", "Cn", "Co", "Cs", "Mn", "Me", "Zs", "Zl", "Zp"}
    pauses = set('-—–…:()[]{}•·’‘ʼ`´“”"«»„‐‑−。，、？！；：¿¡ ,;.')
    lost = []
    for code in range(0x20, 0x2800):
        char = chr(code)
        spoken = normalize(f"so {char} so")
        assert set(spoken) <= SAYABLE, (hex(code), spoken)
        named = unicodedata.category(char) not in silent and char not in pauses
        if named and spoken == "so so":
            lost.append(hex(code))
    assert lost == []


@pytest.mark.parametrize("text", ["", "   ", "\u200b", "\n\t"])
def test_nothing_to_say_stays_nothing(text: str) -> None:
    assert normalize(text) == ""


@pytest.mark.parametrize("text", ["It's 3:05 pm; $12.50!", "Café № 5", "Plan A.B.C. 1st"])
def test_a_second_pass_changes_nothing(text: str) -> None:
    once = normalize(text)
    assert normalize(once) == once


def test_long_numbers_are_read_digit_by_digit() -> None:
    assert spell_number("1" * 16) == " ".join(["one"] * 16)


def test_the_front_end_imports_neither_torch_nor_vllm() -> None:
    code = (
        "import sys, voxnative.text_frontend as t;"
        "print(t.normalize('2'), {'torch', 'vllm'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["two", "set()"]


def test_prose_passes_the_rules_by() -> None:
    assert is_plain(TEXT)
    assert is_plain("Don't go, I said! A tongue-in-cheek answer; was it? No.")
    assert not any(pattern.search(TEXT) for pattern, _ in RULES)


def test_what_passes_the_rules_by_is_what_they_would_leave() -> None:
    """Texts of pieces that rules look for, most of them not plain."""
    words = ["the", "a", "I", "x", "B", "Mr", "etc", "no", "st", "St", "e.g", "p", "www", "com"]
    words += ["o'clock", "'s", "'tis", "NASA", "Hello", "in-cheek", "-", "and-", "-and", "am"]
    marks = [" "] * 10 + [
        ", ",
        ". ",
        "? ",
        "! ",
        "; ",
        ".",
        ",",
        "'",
        " - ",
        "-",
        "  ",
        " .",
        "...",
    ]
    chance = random.Random(0)
    n_plain = 0
    for _ in range(20_000):
        parts = [chance.choice(words) + chance.choice(marks) for _ in range(chance.randint(1, 5))]
        text = "".join(parts)
        if is_plain(text):
            n_plain += 1
            assert normalize(text) == _spelled_out(text), text
    assert n_plain > 2_000
