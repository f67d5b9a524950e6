"""Token ids equal the reference's, Chinese splitting included."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaTokenizerFast

from tests.reference import upstream
from voxnative.tokenizer import TextTokenizer

TEXTS = [
    "hello world",
    "Hello, world! How are you?",
    "  two  spaces and an end ",
    "你好世界",
    "你好，世界！中国人 hello 人们",
    "hello 你好hello中国",
    "(a calm voice)hello",
    "digits 0123, emoji 🙂, accents éü, Кириллица",
    "<|audio_start|>",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("folder", ["tiny_dir", "chinese_tokenizer_dir"])
def test_ids_equal_the_reference_s(folder: str, text: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(folder)
    reference = upstream.mask_multichar_chinese_tokens(LlamaTokenizerFast.from_pretrained(path))
    assert TextTokenizer.from_dir(path).encode(text) == reference(text)


def test_the_texts_need_the_splitting(chinese_tokenizer_dir: Path) -> None:
    llama = LlamaTokenizerFast.from_pretrained(chinese_tokenizer_dir)
    plain = llama.convert_tokens_to_ids(llama.tokenize("你好世界"))
    assert len(TextTokenizer.from_dir(chinese_tokenizer_dir).encode("你好世界")) > len(plain)
