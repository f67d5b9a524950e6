"""Texts that are longer than a request, and the guards, on the shipped checkpoint."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines import RecordingEngine
from tests.hearing import heard_words
from voxnative.errors import PieceError, TextError

SENTENCES = ["the weather is very nice today.", "they bought some bread and milk."]
TEXT = " ".join(SENTENCES)
# A prefix that comes from the cache changes the shapes of the prefill, and with them the last bits.
TOLERANCE = 1e-3
PIECES = {"piece_tokens": 34, "seed": 1, "cfg": 3.0}


def test_separate_pieces_are_the_requests_they_would_be_alone(speaking: RecordingEngine) -> None:
    """And streamed or whole, live or checked, the samples are the same."""
    alone = [speaking.api.synthesize(text, seed=1, cfg=3.0) for text in SENTENCES]
    whole = speaking.api.synthesize_long(TEXT, joint="separate", lookahead=0, **PIECES)
    assert whole.finish_reason == "stop"
    assert [TEXT[piece.start : piece.end] for piece in whole.pieces] == SENTENCES
    expected = np.concatenate([result.samples for result in alone])
    joint = len(alone[0].samples)
    n_fade = whole.sample_rate_hz // 200
    same = np.ones(len(expected), bool)
    same[joint - n_fade : joint + n_fade] = False
    assert len(whole.samples) == len(expected)
    error = np.abs(whole.samples - expected)[same].max()
    print(f"pieces against the requests alone: max {error:.1e}")
    assert error < TOLERANCE
    chunks = list(speaking.api.stream_long(TEXT, joint="separate", **PIECES))
    streamed = np.concatenate([chunk.samples for chunk in chunks])
    assert np.abs(streamed - whole.samples).max() < TOLERANCE
    assert sorted({chunk.piece for chunk in chunks}) == [0, 1]
    heard = heard_words(whole.samples, whole.sample_rate_hz)
    assert {"weather", "nice", "today", "bread", "milk"} <= heard


def test_a_piece_can_continue_the_one_before(speaking: RecordingEngine) -> None:
    whole = speaking.api.synthesize_long(TEXT, joint="continue", **PIECES)
    assert [piece.is_joined for piece in whole.pieces] == [False, True]
    # Taken up at the second piece, with the first as its prompt: the same samples.
    n_first = round(whole.pieces[0].duration_s * whole.sample_rate_hz)
    alone = speaking.api.synthesize(SENTENCES[0], seed=1, cfg=3.0)
    rest = speaking.api.synthesize_long(
        TEXT,
        joint="continue",
        first_piece=1,
        prompt=(alone.samples, alone.sample_rate_hz),
        prompt_text=f"{SENTENCES[0]} ",
        **PIECES,
    )
    n_fade = whole.sample_rate_hz // 200
    continued = whole.samples[n_first:]
    assert len(rest.samples) == len(continued)
    assert np.abs(rest.samples - continued)[n_fade:].max() < TOLERANCE


def test_a_text_beyond_the_context(speaking: RecordingEngine) -> None:
    """A request refuses it; in pieces it is spoken, here up to a cap."""
    text = TEXT * 20
    with pytest.raises(TextError, match="a context of 512"):
        speaking.api.synthesize(text)
    result = speaking.api.synthesize_long(text, seed=1, max_steps=4)
    assert (result.finish_reason, len(result.samples)) == ("length", 4 * 2560)


def test_a_run_away_piece_is_reported(speaking: RecordingEngine) -> None:
    """It may not stop before its cap, at any attempt."""
    never = {"min_steps": 400, "retry_badcase_ratio_threshold": 0.1, "lookahead": 0}
    with pytest.raises(PieceError, match="did not end within 13 patches") as caught:
        speaking.api.synthesize_long(TEXT, **PIECES, **never)
    assert TEXT[caught.value.start : caught.value.end] == SENTENCES[0]


def test_silence_ends_a_request_while_it_streams(speaking: RecordingEngine) -> None:
    text = "yes. no. we will go. good morning."
    whole = speaking.api.synthesize(text, seed=1, cfg=3.0)
    assert whole.finish_reason == "stop"
    cut = speaking.api.synthesize(text, seed=1, cfg=3.0, max_silence_s=0.05)
    assert cut.finish_reason == "silence"
    assert 0 < len(cut.samples) < len(whole.samples)
    error = np.abs(cut.samples - whole.samples[: len(cut.samples)]).max()
    assert error < TOLERANCE
    streamed = list(speaking.api.stream(text, seed=1, cfg=3.0, max_silence_s=0.05))
    assert sum(len(chunk.samples) for chunk in streamed) == len(cut.samples)
    # The requests are over in the engine, too: later ones carry the news to the worker.
    for _ in range(2):
        speaking.api.synthesize(text, seed=1, max_steps=4)
    assert len(speaking.rpc("speech_requests")) <= 1  # the last one, until the next step


def test_a_bad_case_is_spoken_again(speaking: RecordingEngine) -> None:
    text = "yes."
    good = speaking.api.synthesize(text, seed=1, cfg=3.0, retry_badcase=True)
    assert (good.finish_reason, good.n_attempts, good.seed) == ("stop", 1, 1)
    bad = speaking.api.synthesize(
        text,
        seed=1,
        cfg=3.0,
        retry_badcase=True,
        retry_badcase_max_times=2,
        retry_badcase_ratio_threshold=0.5,
    )
    assert (bad.finish_reason, bad.n_attempts, bad.seed) == ("bad_case", 2, 2)
    assert bad.n_patches >= 2


@pytest.mark.parametrize("text", ["Yes.", "Tak.", "7"])
def test_very_short_texts_are_spoken(speaking: RecordingEngine, text: str) -> None:
    result = speaking.api.synthesize(text, seed=1, cfg=3.0)
    assert result.finish_reason == "stop"
    assert 0.3 < result.duration_s < 3
    assert result.n_patches < result.n_max_patches
    assert np.abs(result.samples).max() > 0.05
