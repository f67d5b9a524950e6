"""TextTokenizer: no special tokens, Chinese words split, missing files named."""

from __future__ import annotations

from pathlib import Path

import pytest

from voxnative.errors import CheckpointError
from voxnative.tokenizer import TextTokenizer
from voxnative.units import AUDIO_START_ID


@pytest.fixture(scope="module")
def chinese(chinese_tokenizer_dir: Path) -> TextTokenizer:
    return TextTokenizer.from_dir(chinese_tokenizer_dir)


def test_no_special_tokens_are_added(tiny_tokenizer: TextTokenizer) -> None:
    # ▁ h i, in the shipped checkpoint's vocabulary of characters
    assert tiny_tokenizer.encode("hi") == [3, 11, 12]


def test_the_special_ids_lie_where_the_model_expects_them(chinese_tokenizer_dir: Path) -> None:
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(str(chinese_tokenizer_dir / "tokenizer.json"))
    assert vocabulary.token_to_id("<|audio_start|>") == AUDIO_START_ID


def test_chinese_words_become_characters(chinese: TextTokenizer) -> None:
    words = chinese._llama.tokenize("你好世界，中国人")
    assert words == ["▁你好", "世界", "，", "中国人"]
    characters = chinese._llama.convert_tokens_to_ids(list("你好世界，中国人"))
    assert chinese.encode("你好世界，中国人") == characters


def test_other_words_stay_whole(chinese: TextTokenizer) -> None:
    assert chinese.encode("hello hello") == chinese._llama.convert_tokens_to_ids(
        ["▁hello", "▁hello"]
    )


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"no tokenizer\.json or tokenizer\.model in"
    ) as caught:
        TextTokenizer.from_dir(tmp_path)
    assert caught.value.path == tmp_path


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=f"cannot read the tokenizer in '{tmp_path}'"):
        TextTokenizer.from_dir(tmp_path)


@pytest.mark.parametrize("text", ["hello 你好 中国人!", "<|audio_start|>", "h\u00e9", " ", ""])
def test_ids_are_those_of_the_tokens(chinese: TextTokenizer, text: str) -> None:
    tokens = chinese._llama.tokenize(text)
    words = {"你好", "世界", "中国", "中国人"}
    named = [c for t in tokens for c in (t.strip("▁") if t.strip("▁") in words else [t])]
    assert chinese.encode(text) == chinese._llama.convert_tokens_to_ids(named)


def test_no_setting_of_the_file_cuts_or_pads_a_text(tiny_dir: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    stored = Tokenizer.from_file(str(tiny_dir / "tokenizer.json"))
    stored.enable_truncation(3)
    stored.enable_padding(length=9)
    stored.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_bytes(
        (tiny_dir / "tokenizer_config.json").read_bytes()
    )
    for text in ("h", "hello there"):
        plain = TextTokenizer.from_dir(tiny_dir).encode(text)
        assert TextTokenizer.from_dir(tmp_path).encode(text) == plain
