"""A text of any length -> the requests that speak it piece by piece.

How a piece takes over the voice from what was spoken before it is the *joint*:

    continue    it continues the piece before it: that one's audio is its prompt
    reference   the first piece's audio is the reference of all later ones
    separate    every piece is spoken as if it were alone, with the same seed and voice

`continue` keeps voice and melody where the checkpoint was trained for it, and makes the pieces
one after the other. `reference` needs a checkpoint that clones. A recording that the caller gives
stays the reference of every piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from voxnative.audio_input import load_audio
from voxnative.errors import InvalidRequestError, ParameterError, TextError
from voxnative.params import another_seed
from voxnative.pieces import PIECE_TOKENS, Piece, split_text
from voxnative.speech_request import RequestBuilder, SpeechRequest
from voxnative.units import JOINTS, MAX_REFERENCE_S

if TYPE_CHECKING:
    from voxnative.engine.lora_registry import LoadedLoRA

DEFAULT_LOOKAHEAD = 2
LOOKAHEAD_RANGE = (0, 64)


@dataclass(frozen=True, eq=False)
class SpokenPiece:
    """A finished piece, for those that follow.

    Attributes:
        text: what was said.
        samples: float32 [n] at `sample_rate_hz`.
        sample_rate_hz: output rate.
    """

    text: str
    samples: np.ndarray
    sample_rate_hz: int


@dataclass(frozen=True, eq=False)
class LongRequest:
    """A validated text and how its pieces are made.

    Attributes:
        pieces: of the whole text.
        first_piece: index of the first one to speak.
        joint: how a piece takes over the voice.
        lookahead: pieces that may be made before they are read.
        live: samples are handed out as they are made; otherwise a piece at a time, checked.
        seed: of every piece's first attempt.
        n_max_patches: of the whole audio; None for no limit.
        opening: the request of the first piece.
        patch_samples: samples of one patch of audio.
    """

    pieces: tuple[Piece, ...]
    first_piece: int
    joint: str
    lookahead: int
    live: bool
    seed: int
    n_max_patches: int | None
    opening: SpeechRequest
    patch_samples: int
    _builder: RequestBuilder
    _arguments: Mapping[str, Any]

    @property
    def makes_one_at_a_time(self) -> bool:
        """Whether a piece starts when the one before it is complete.

        Pieces that run at once would slow the one down that is being heard.
        """
        return self.live or self.joint == "continue"

    def with_lora(self, adapter: LoadedLoRA) -> LongRequest:
        """The same, spoken with an adapter."""
        opening = replace(self.opening, lora=adapter)
        return replace(self, opening=opening, _arguments={**self._arguments, "lora": adapter})

    def live_if_short(self) -> LongRequest:
        """The same, but live where there is a single piece: it need not wait for its check."""
        return replace(self, live=True) if len(self.pieces) == 1 else self

    def request(
        self, piece: Piece, attempt: int, before: SpokenPiece | None, first: SpokenPiece | None
    ) -> tuple[SpeechRequest, bool]:
        """The request of a piece, and whether it is joined to what was spoken before it.

        A joint that does not fit the context, or is longer than a prompt may be, is left out.

        Args:
            piece: the piece.
            attempt: 0 for the first; another attempt has another seed.
            before: the piece before it, where it is known.
            first: the first piece that was spoken, where it is known.
        """
        if piece.index == self.first_piece:
            return self.opening.attempt(attempt), False
        arguments = {**self._arguments, "seed": another_seed(self.seed, attempt)}
        joined = self._joined(arguments, before, first)
        if joined is not None:
            try:
                return self._builder.build(piece.text, **joined), True
            except InvalidRequestError:
                pass
        return self._builder.build(piece.text, **arguments), False

    def _joined(
        self, arguments: Mapping[str, Any], before: SpokenPiece | None, first: SpokenPiece | None
    ) -> dict[str, Any] | None:
        """The arguments with what the joint adds to them; None where it adds nothing."""
        has_voice = "reference" in arguments or "prompt" in arguments
        rest = {name: value for name, value in arguments.items() if name != "description"}
        if self.joint == "continue" and before is not None:
            recording = (before.samples, before.sample_rate_hz)
            return {**rest, "prompt": recording, "prompt_text": _before(before.text)}
        if self.joint == "reference" and first is not None and not has_voice:
            longest = int(MAX_REFERENCE_S * first.sample_rate_hz)
            return {**rest, "reference": (first.samples[:longest], first.sample_rate_hz)}
        return None


def _before(text: str) -> str:
    """A text as the prompt's text of what follows: a space between two, but not in Chinese."""
    return text if text[-1:] > "\u2e7f" else f"{text} "


def plan_long(
    builder: RequestBuilder,
    text: str,
    *,
    joint: str | None = None,
    piece_tokens: int = PIECE_TOKENS,
    first_piece: int = 0,
    lookahead: int = DEFAULT_LOOKAHEAD,
    live: bool = False,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    **arguments: Any,
) -> LongRequest:
    """Cut a text into pieces and validate the call.

    Args:
        builder: makes the requests.
        text: of any length.
        joint: how a piece takes over the voice; the checkpoint's own way when None.
        piece_tokens: most tokens of a piece.
        first_piece: where to start, to go on after an error. With the audio and the text of the
            piece before it as `prompt` and `prompt_text`, "continue" has no gap there.
        lookahead: pieces that may be made before they are read.
        live: hand samples out as they are made.
        max_steps: cap on the patches of the whole.
        max_seconds: longest audio of the whole.
        arguments: as `RequestBuilder.build`; they hold for every piece. `retry_badcase` is left
            to the pieces' own check.

    Raises:
        InvalidRequestError: names the field, its value and what is valid.
    """
    if joint is not None and joint not in JOINTS:
        raise ParameterError("joint", joint, ", ".join(JOINTS))
    _check_int("lookahead", lookahead, *LOOKAHEAD_RANGE)
    if arguments.get("retry_badcase"):
        raise ParameterError("retry_badcase", True, "false: a long text's pieces are checked")
    if not isinstance(text, str):
        raise TextError("text", text, "a string")
    normalize = arguments.get("normalize", False)
    given = {name: value for name, value in arguments.items() if value is not None}
    given = {name: _loaded(builder, name, value) for name, value in given.items()}
    pieces = split_text(text, piece_tokens, lambda part: builder.n_tokens(part, normalize))
    _check_int("first_piece", first_piece, 0, len(pieces) - 1)
    opening = builder.build(
        pieces[first_piece].text, max_steps=max_steps, max_seconds=max_seconds, **given
    )
    return LongRequest(
        pieces=tuple(pieces),
        first_piece=first_piece,
        joint=joint or builder.config.long_text_joint,
        lookahead=lookahead,
        live=live,
        seed=opening.seed,
        n_max_patches=builder.cap(max_steps, max_seconds),
        opening=opening,
        patch_samples=builder.config.patch_samples_out,
        _builder=builder,
        _arguments=given,
    )


def _loaded(builder: RequestBuilder, name: str, value: Any) -> Any:
    """A recording is read once; all pieces get the same samples."""
    if name not in ("reference", "prompt"):
        return value
    rate_hz = builder.config.vae.sample_rate_hz
    samples = load_audio(value, field=name, sample_rate_hz=rate_hz, max_s=MAX_REFERENCE_S)
    return samples, rate_hz


def _check_int(field: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ParameterError(field, value, f"a whole number from {low} to {high}")
