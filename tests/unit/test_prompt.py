"""The four layouts, their spans, the length cap, and every refused combination."""

from __future__ import annotations

import numpy as np
import pytest

from voxnative.config import VoxConfig
from voxnative.errors import AudioInputError, ParameterError, TextError
from voxnative.prompt import SpeechPrompt, build_prompt, default_max_steps
from voxnative.tokenizer import TextTokenizer
from voxnative.units import AUDIO_START_ID, REF_END_ID, REF_START_ID


@pytest.fixture(scope="module")
def build(tiny_config: VoxConfig, tiny_tokenizer: TextTokenizer):
    def build(text: str, **options: object) -> SpeechPrompt:
        return build_prompt(text, config=tiny_config, tokenizer=tiny_tokenizer, **options)

    return build


class Counting:
    """A tokenizer that counts its calls."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self.n_calls = 0

    def encode(self, text: str) -> list[int]:
        self.n_calls += 1
        return self._tokenizer.encode(text)


@pytest.mark.parametrize("is_continued", [False, True])
def test_a_text_is_tokenised_once(
    tiny_config: VoxConfig, tiny_tokenizer: TextTokenizer, is_continued: bool
) -> None:
    """A continuation is counted by its own text and spoken behind the prompt's."""
    tokenizer = Counting(tiny_tokenizer)
    options = {"prompt": recording(9), "prompt_text": "hello "} if is_continued else {}
    build_prompt("again", config=tiny_config, tokenizer=tokenizer, **options)  # type: ignore[arg-type]
    assert tokenizer.n_calls == 1 + is_continued


def recording(n_samples: int) -> np.ndarray:
    return np.linspace(0.1, 0.9, n_samples, dtype=np.float32)


def test_zero_shot(build, tiny_tokenizer: TextTokenizer) -> None:
    prompt = build("hello")
    assert prompt.token_ids == [*tiny_tokenizer.encode("hello"), AUDIO_START_ID]
    assert prompt.spans == ()
    assert (prompt.mode, prompt.n_target_tokens) == ("zero_shot", 6)


def test_reference(build, tiny_config: VoxConfig, tiny_tokenizer: TextTokenizer) -> None:
    n_patch = tiny_config.patch_samples_in
    prompt = build("hello", reference=recording(2 * n_patch + 5))
    patches = [tiny_config.audio_patch_id] * 3
    text = tiny_tokenizer.encode("hello")
    assert prompt.token_ids == [REF_START_ID, *patches, REF_END_ID, *text, AUDIO_START_ID]
    (span,) = prompt.spans
    assert (span.role, span.offset, span.n_patches) == ("reference", 1, 3)
    np.testing.assert_array_equal(span.samples[: 2 * n_patch + 5], recording(2 * n_patch + 5))
    assert not span.samples[2 * n_patch + 5 :].any()  # padded on the right
    assert prompt.mode == "reference"


def test_continuation(build, tiny_config: VoxConfig, tiny_tokenizer: TextTokenizer) -> None:
    n_patch = tiny_config.patch_samples_in
    prompt = build("world", prompt=recording(n_patch + 5), prompt_text="hello ")
    text = tiny_tokenizer.encode("hello world")
    patches = [tiny_config.audio_patch_id] * 2
    assert prompt.token_ids == [*text, AUDIO_START_ID, *patches]
    (span,) = prompt.spans
    assert (span.role, span.offset, span.n_patches) == ("prompt", len(text) + 1, 2)
    np.testing.assert_array_equal(span.samples[n_patch - 5 :], recording(n_patch + 5))
    assert not span.samples[: n_patch - 5].any()  # padded on the left
    assert prompt.mode == "continuation"
    assert prompt.n_target_tokens == len(tiny_tokenizer.encode("world"))


def test_reference_and_continuation(build, tiny_config: VoxConfig) -> None:
    n_patch = tiny_config.patch_samples_in
    prompt = build(
        "b", reference=recording(n_patch), prompt=recording(2 * n_patch), prompt_text="a"
    )
    ids = prompt.token_ids
    reference, continued = prompt.spans
    assert (reference.offset, reference.n_patches) == (1, 1)
    assert (continued.offset, continued.n_patches) == (len(ids) - 2, 2)
    assert ids[:3] == [REF_START_ID, tiny_config.audio_patch_id, REF_END_ID]
    assert ids[continued.offset - 1] == AUDIO_START_ID
    assert ids.count(tiny_config.audio_patch_id) == 3
    assert prompt.mode == "reference_continuation"


def test_a_description_goes_in_front(build, tiny_tokenizer: TextTokenizer) -> None:
    prompt = build("hello", description=" a calm  voice ")
    assert prompt.token_ids[:-1] == tiny_tokenizer.encode("(a calm voice)hello")
    assert prompt.n_target_tokens == len(prompt.token_ids) - 1


def test_white_space_is_one_space(build) -> None:
    assert build("  a\n\tb \n").token_ids == build("a b").token_ids


def test_the_joint_of_a_continuation_is_kept(build) -> None:
    voice = recording(100)
    joined = build("world", prompt=voice, prompt_text=" hello").token_ids
    spaced = build(" world ", prompt=voice, prompt_text="hello").token_ids
    assert len(spaced) == len(joined) + 1


def test_digests_tell_content_and_role_apart(build, tiny_config: VoxConfig) -> None:
    n_patch = tiny_config.patch_samples_in
    voice, other = recording(n_patch), recording(n_patch) * 0.5
    both = build("b", reference=voice, prompt=voice, prompt_text="a").spans
    again = build("another text", reference=voice.copy()).spans[0]
    assert again.digest == both[0].digest != both[1].digest
    assert build("b", reference=other).spans[0].digest != again.digest
    assert len(again.digest) == 64


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "\u3000"])
@pytest.mark.parametrize("field", ["text", "prompt_text", "description"])
def test_blank_text_is_refused(build, field: str, text: str) -> None:
    options: dict[str, object] = {"text": "a", field: text}
    if field == "prompt_text":
        options["prompt"] = recording(100)
    with pytest.raises(TextError, match="at least one visible character") as caught:
        build(options.pop("text"), **options)
    assert caught.value.field == field


@pytest.mark.parametrize("text", [None, 7, b"hello", ["hello"]])
def test_text_that_is_no_string_is_refused(build, text: object) -> None:
    with pytest.raises(TextError, match="a string"):
        build(text)


def test_lone_surrogates_are_refused(build) -> None:
    with pytest.raises(TextError, match="lone surrogates"):
        build("hello \ud83d")


def test_prompt_and_its_text_come_together(build) -> None:
    with pytest.raises(ParameterError, match=r"field 'prompt_text': None .* or neither"):
        build("a", prompt=recording(100))
    with pytest.raises(ParameterError, match=r"field 'prompt': None .* or neither"):
        build("a", prompt_text="b")


def test_a_description_beside_a_prompt_is_refused(build) -> None:
    with pytest.raises(ParameterError, match="no description beside a prompt"):
        build("a", prompt=recording(100), prompt_text="b", description="calm")


@pytest.mark.parametrize("role", ["reference", "prompt"])
def test_an_empty_recording_is_refused(build, role: str) -> None:
    options = {"prompt_text": "b"} if role == "prompt" else {}
    with pytest.raises(AudioInputError, match=f"field '{role}'.*not empty"):
        build("a", **{role: recording(0)}, **options)


def test_text_beyond_the_context_is_refused_with_numbers(build) -> None:
    fitting = build("a" * 17, context_len=20)  # ▁, 17 letters, AUDIO_START: one left to speak
    assert len(fitting.token_ids) == 19
    with pytest.raises(TextError, match=r"at most 19 positions.*this takes 20: 20 for text and 0"):
        build("a" * 18, context_len=20)


def test_recordings_count_against_the_context(build, tiny_config: VoxConfig) -> None:
    voice = recording(10 * tiny_config.patch_samples_in)
    with pytest.raises(TextError, match="this takes 21: 9 for text and 12 for recordings"):
        build("a" * 7, reference=voice, context_len=20)


def test_the_config_s_length_is_the_default_context(build, tiny_config: VoxConfig) -> None:
    with pytest.raises(TextError, match=f"at most {tiny_config.max_length - 1} positions"):
        build("a" * tiny_config.max_length)


@pytest.mark.parametrize(
    ("n_target_tokens", "max_steps", "expected"), [(5, 2048, 40), (5, 12, 12), (1000, 2048, 2048)]
)
def test_the_length_cap(n_target_tokens: int, max_steps: int, expected: int) -> None:
    assert default_max_steps(n_target_tokens, max_steps) == expected
