"""One call's arguments: what is refused, what becomes of very short texts, and the caps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from voxnative.config import VoxConfig
from voxnative.errors import InvalidRequestError, ParameterError, TextError
from voxnative.speech_request import QUICK_CHARS, RequestBuilder, is_quick
from voxnative.tokenizer import TextTokenizer


@pytest.fixture(scope="module")
def english(tiny_config: VoxConfig, tiny_tokenizer: TextTokenizer) -> RequestBuilder:
    """The shipped checkpoint: letters, behind an English front end."""
    return RequestBuilder(tiny_config, tiny_tokenizer, context_len=512)


@pytest.fixture(scope="module")
def plain(tiny_config: VoxConfig, tiny_tokenizer: TextTokenizer) -> RequestBuilder:
    """The same without the front end, as the published model has it."""
    return RequestBuilder(replace(tiny_config, text_frontend="none"), tiny_tokenizer, 512)


@pytest.mark.parametrize("text", ["Yes.", "Tak.", "a", "7", "1,000", "No!", "...so?"])
def test_very_short_texts_are_fine(english: RequestBuilder, text: str) -> None:
    assert english.build(text).prompt.n_target_tokens >= 1


@pytest.mark.parametrize("text", ["😀", "%", "&", "$"])
def test_the_front_end_finds_words_for_signs(english: RequestBuilder, text: str) -> None:
    assert english.build(text).prompt.n_target_tokens >= 2


@pytest.mark.parametrize("text", ["...", "?!", "-", "。", "( )", "\u200b", '"'])
def test_nothing_to_say(english: RequestBuilder, plain: RequestBuilder, text: str) -> None:
    for builder in (english, plain):
        with pytest.raises(TextError, match="a letter or a digit") as caught:
            builder.build(text)
        assert (caught.value.field, caught.value.value) == ("text", text)


@pytest.mark.parametrize("text", ["😀", "$%&", "* * *"])
def test_signs_alone_are_nothing_without_a_front_end(plain: RequestBuilder, text: str) -> None:
    with pytest.raises(TextError, match="a letter or a digit"):
        plain.build(text)


@pytest.mark.parametrize("text", [None, 5, b"a", ["a"]])
def test_no_string(english: RequestBuilder, text: Any) -> None:
    with pytest.raises(TextError, match="valid: a string"):
        english.build(text)


def test_a_space_between_prompt_and_text_stays(
    english: RequestBuilder, tiny_tokenizer: TextTokenizer
) -> None:
    prompt = (np.ones(16_000, np.float32) * 0.1, 16_000)
    for said, text in (("Hello there. ", "and goodbye."), ("Hello there.", " and goodbye.")):
        ids = english.build(text, prompt=prompt, prompt_text=said).prompt.token_ids
        expected = tiny_tokenizer.encode("Hello there. and goodbye.")
        assert ids[: len(expected)] == expected


def test_the_cap_follows_from_the_text(english: RequestBuilder) -> None:
    assert english.build("yes.").n_max_steps == 6 * 5 + 10
    assert english.build("yes.", max_steps=5).n_max_steps == 5
    assert english.build("yes.", max_seconds=0.5).n_max_steps == 4
    assert english.build("yes.", retry_badcase_ratio_threshold=2.5).n_max_steps == 22
    assert english.build("a" * 200).n_max_steps == 512 - 202  # what the context leaves


def test_a_bad_case_is_too_many_patches_a_token(english: RequestBuilder) -> None:
    request = english.build("yes.", seed=3, retry_badcase=True, retry_badcase_ratio_threshold=2.0)
    assert [request.is_bad_case(n) for n in (9, 10)] == [False, True]
    assert [request.attempt(number).seed for number in range(3)] == [3, 4, 5]
    assert request.attempt(1).prompt is request.prompt
    last = english.build("yes.", seed=2**63 - 1)
    assert last.attempt(1).seed == 0
    with pytest.raises(ParameterError, match="false while streaming"):
        request.streamed()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("retry_badcase", "yes"),
        ("retry_badcase_max_times", 0),
        ("retry_badcase_max_times", 1.5),
        ("retry_badcase_ratio_threshold", 0),
        ("retry_badcase_ratio_threshold", float("nan")),
        ("max_silence_s", -1),
        ("max_silence_s", "3"),
    ],
)
def test_values_out_of_range(english: RequestBuilder, field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        english.build("yes.", **{field: value})
    assert caught.value.field == field


def test_normalize_makes_words(plain: RequestBuilder, tiny_tokenizer: TextTokenizer) -> None:
    expected = tiny_tokenizer.encode("forty two")
    assert plain.build("42", normalize=True).prompt.token_ids[: len(expected)] == expected


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("Hello.", {}, True),
        ("a" * QUICK_CHARS, {"seed": 1, "reference": None, "normalize": False}, True),
        ("a" * (QUICK_CHARS + 1), {}, False),
        ("Hello.", {"description": "a" * QUICK_CHARS}, False),
        ("Hello.", {"normalize": True}, False),
        ("Hello.", {"reference": np.zeros(3)}, False),
        ("Hello.", {"prompt": "voice.wav"}, False),
        (None, {}, True),  # refused at once
    ],
)
def test_what_is_built_without_a_thread(
    text: Any, arguments: dict[str, Any], expected: bool
) -> None:
    assert is_quick(text, arguments) is expected
