"""wetext reads numbers, dates and signs; without it the error names the extra."""

from __future__ import annotations

import subprocess
import sys

import pytest

from voxnative.text_normalizer import to_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Room 42 is 75% full.", "Room forty two is seventy five percent full."),
        ("It costs $3.50.", "It costs three point five dollars."),
        ("Line 1.\nLine 2.", "Line one. Line two."),
        ("今天是2024年5月6日，花了¥300。", "今天是二零二四年五月六日，花了三百元。"),
        ("3.5%的人有2个苹果", "百分之三点五的人有两个苹果"),
        ("No numbers, don't worry.", "No numbers, don't worry."),
    ],
)
def test_words(text: str, words: str) -> None:
    assert to_words(text) == words


def test_without_the_package() -> None:
    code = (
        "import sys; sys.modules['wetext'] = None\n"
        "from voxnative.text_normalizer import to_words\n"
        "to_words('a')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingExtraError: 'wetext' is not installed" in done.stderr
    assert "pip install 'voxnative[wetext]'" in done.stderr
