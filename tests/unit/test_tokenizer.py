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
