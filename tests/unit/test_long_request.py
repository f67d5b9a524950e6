"""Which request speaks which piece: joints, seeds, and where a text is taken up again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxnative.config import VoxConfig
from voxnative.errors import InvalidRequestError, TextError
from voxnative.long_request import LongRequest, SpokenPiece, plan_long
from voxnative.speech_request import RequestBuilder
from voxnative.tokenizer import TextTokenizer

TEXT = "the first sentence is here. the second one follows it. and that was the third one."
RATE_HZ = 16_000
RECORDING = (np.full(RATE_HZ, 0.1, np.float32), RATE_HZ)


@pytest.fixture(scope="module")
def builder(tiny_config: VoxConfig, tiny_tokenizer: TextTokenizer) -> RequestBuilder:
    return RequestBuilder(tiny_config, tiny_tokenizer, context_len=512)


def plan(builder: RequestBuilder, text: str = TEXT, **arguments: Any) -> LongRequest:
    return plan_long(builder, text, **{"piece_tokens": 30, "seed": 5, **arguments})


def spoken(text: str, seconds: float = 1.0) -> SpokenPiece:
    return SpokenPiece(text, np.full(round(seconds * RATE_HZ), 0.1, np.float32), RATE_HZ)


def test_the_pieces_of_a_text(builder: RequestBuilder) -> None:
    request = plan(builder)
    assert [piece.text for piece in request.pieces] == [
        "the first sentence is here.",
        "the second one follows it.",
        "and that was the third one.",
    ]


def test_the_checkpoint_says_how_pieces_are_joined(builder: RequestBuilder) -> None:
    assert plan(builder).joint == builder.config.long_text_joint == "separate"
    other = replace(builder, config=replace(builder.config, long_text_joint="continue"))
    assert plan(other).joint == "continue"
    assert plan(other, joint="separate").joint == "separate"


def test_pieces_are_measured_as_they_are_spoken(builder: RequestBuilder) -> None:
    """Seven characters, but more than forty letters when it is read out."""
    request = plan(builder, "1234567 is it. yes.")
    assert len(request.pieces) == 3


def test_a_separate_piece_is_an_ordinary_request(builder: RequestBuilder) -> None:
    request = plan(builder, joint="separate", cfg=2.5)
    before = spoken("x")
    for attempt in (0, 1):
        call, joined = request.request(request.pieces[1], attempt, before, before)
        alone = builder.build(request.pieces[1].text, seed=5 + attempt, cfg=2.5)
        assert not joined
        assert (call.params, call.n_max_steps) == (alone.params, alone.n_max_steps)
        assert call.prompt.token_ids == alone.prompt.token_ids


def test_continue_takes_the_piece_before_as_its_prompt(
    builder: RequestBuilder, tiny_tokenizer: TextTokenizer
) -> None:
    request = plan(builder, joint="continue", reference=RECORDING, description="calm")
    opening, joined = request.request(request.pieces[0], 0, None, None)
    assert (opening.prompt.mode, joined) == ("reference", False)
    before = spoken(request.pieces[0].text)
    call, joined = request.request(request.pieces[1], 0, before, before)
    assert (call.prompt.mode, joined) == ("reference_continuation", True)
    text = tiny_tokenizer.encode("the first sentence is here. the second one follows it.")
    begin = call.prompt.spans[0].n_patches + 2
    assert call.prompt.token_ids[begin : begin + len(text)] == text
    np.testing.assert_array_equal(call.prompt.spans[1].samples[-RATE_HZ:], before.samples)


def test_chinese_pieces_meet_without_a_space(
    builder: RequestBuilder, chinese_tokenizer_dir: Path
) -> None:
    plain = RequestBuilder(
        replace(builder.config, text_frontend="none"),
        TextTokenizer.from_dir(chinese_tokenizer_dir),
        context_len=512,
    )
    request = plan(plain, "你好。" * 20, joint="continue")
    call, _ = request.request(request.pieces[1], 0, spoken("你好。"), None)
    n_text = len(plain.tokenizer.encode("你好。" + request.pieces[1].text))
    assert len(call.prompt.token_ids) == n_text + 1 + call.prompt.spans[0].n_patches


@pytest.mark.parametrize("seconds", [31.0, 29.0])
def test_a_joint_that_does_not_fit_is_left_out(builder: RequestBuilder, seconds: float) -> None:
    """Longer than a prompt may be; or no room for it in the context."""
    small = replace(builder, context_len=200)
    request = plan(small, joint="continue")
    call, joined = request.request(request.pieces[1], 0, spoken("x", seconds), None)
    assert (call.prompt.mode, joined) == ("zero_shot", False)


def test_reference_takes_the_first_piece_unless_a_voice_is_given(builder: RequestBuilder) -> None:
    first = spoken("x", 2.0)
    request = plan(builder, joint="reference")
    call, joined = request.request(request.pieces[2], 0, None, first)
    assert (call.prompt.mode, joined) == ("reference", True)
    np.testing.assert_array_equal(call.prompt.spans[0].samples[: 2 * RATE_HZ], first.samples)
    given = plan(builder, joint="reference", reference=RECORDING)
    call, joined = given.request(given.pieces[2], 0, None, first)
    assert (call.prompt.mode, joined) == ("reference", False)
    np.testing.assert_array_equal(call.prompt.spans[0].samples[:RATE_HZ], RECORDING[0])


def test_starting_at_a_piece(builder: RequestBuilder) -> None:
    whole, rest = plan(builder), plan(builder, first_piece=1)
    assert rest.pieces == whole.pieces
    call, _ = rest.request(rest.pieces[1], 0, None, None)
    expected, _ = whole.request(whole.pieces[1], 0, None, None)
    assert call.prompt.token_ids == expected.prompt.token_ids
    said = {"prompt": RECORDING, "prompt_text": f"{whole.pieces[0].text} "}
    call, _ = plan(builder, first_piece=1, joint="continue", **said).request(
        whole.pieces[1], 0, None, None
    )
    assert call.prompt.mode == "continuation"


def test_a_recording_is_read_once(builder: RequestBuilder, tmp_path: Any) -> None:
    import soundfile

    path = tmp_path / "voice.wav"
    soundfile.write(path, *RECORDING)
    request = plan(builder, reference=path, joint="separate")
    path.unlink()
    call, _ = request.request(request.pieces[1], 0, None, None)
    assert call.prompt.mode == "reference"


def test_a_seed_is_drawn_once(builder: RequestBuilder) -> None:
    request = plan(builder, seed=None)
    seeds = {request.request(piece, 0, None, None)[0].seed for piece in request.pieces}
    assert seeds == {request.seed}
    assert plan(builder, seed=None).seed != request.seed


def test_the_cap_is_the_whole_text_s(builder: RequestBuilder) -> None:
    assert plan(builder).n_max_patches is None
    assert plan(builder, max_steps=7).n_max_patches == 7
    assert plan(builder, max_steps=7, max_seconds=0.3).n_max_patches == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("joint", "glue"),
        ("piece_tokens", 5),
        ("first_piece", 3),
        ("first_piece", -1),
        ("first_piece", "1"),
        ("lookahead", 65),
        ("retry_badcase", True),
        ("seed", -1),
        ("max_seconds", 0),
        ("reference", b"no audio"),
    ],
)
def test_bad_arguments(builder: RequestBuilder, field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plan(builder, **{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("text", ["", " \n", "...", "* * *\n" * 100, None])
def test_nothing_to_say(builder: RequestBuilder, text: Any) -> None:
    with pytest.raises(TextError, match="field 'text'"):
        plan(builder, text)
