"""Text and recordings -> token ids and audio spans, in the reference's four layouts.

A family has those of them that it was trained on (`Family.modes`):

    zero-shot               text AUDIO_START
    reference               REF_START patches REF_END text AUDIO_START
    continuation            prompt_text+text AUDIO_START patches
    reference_continuation  REF_START patches REF_END prompt_text+text AUDIO_START patches

Audio positions hold the config's audio patch id; the recordings' samples travel in the spans.
Source: voxcpm 2.0.3, `VoxCPM2Model._generate`, `VoxCPMModel._generate`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from voxnative.config import VoxConfig
from voxnative.errors import AudioInputError, ParameterError, TextError
from voxnative.family import Family, Mode
from voxnative.units import (
    AUDIO_START_ID,
    REF_END_ID,
    REF_START_ID,
    STEPS_MARGIN,
    STEPS_PER_TOKEN,
)

Role = Literal["reference", "prompt"]
_SURROGATE = re.compile("[\ud800-\udfff]")
_WHITE_SPACE = re.compile(r"\s+")


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, eq=False)
class AudioSpan:
    """Where a recording sits in the prompt.

    Args:
        role: "reference" (a voice) or "prompt" (speech to continue).
        offset: first position of the span.
        n_patches: positions of the span.
        samples: float32 [n_patches * patch_samples_in], padded to whole patches.
        digest: sha256 of role and samples; equal recordings share cached encodings.
    """

    role: Role
    offset: int
    n_patches: int
    samples: np.ndarray
    digest: str


@dataclass(frozen=True, eq=False)
class SpeechPrompt:
    """What the engine gets for one request.

    Args:
        token_ids: one id a position.
        spans: the recordings, in the order of their positions.
        n_target_tokens: tokens of the text to speak alone (a description counts, a prompt's
            text does not); the length cap follows from it.
        mode: the layout.
    """

    token_ids: list[int]
    spans: tuple[AudioSpan, ...]
    n_target_tokens: int
    mode: Mode


def build_prompt(
    text: str,
    *,
    config: VoxConfig,
    tokenizer: Tokenizer,
    reference: np.ndarray | None = None,
    prompt: np.ndarray | None = None,
    prompt_text: str | None = None,
    description: str | None = None,
    context_len: int | None = None,
) -> SpeechPrompt:
    """Lay out one request.

    Args:
        text: what to speak. Runs of white space become one space.
        reference: a voice to speak with, float32 [n] at `config.vae.sample_rate_hz`.
        prompt: speech to continue, float32 [n] at the same rate; needs `prompt_text`.
        prompt_text: what is said in `prompt`.
        description: a voice in words, not together with `prompt`, where the family takes one.
        context_len: positions of the engine; the config's `max_length` by default.

    Raises:
        TextError: a text is empty, blank, not Unicode, or beyond the context.
        ParameterError: the arguments do not go together, or the family has no such mode.
        AudioInputError: a recording is empty.
    """
    if (prompt is None) != (prompt_text is None):
        missing = "prompt" if prompt is None else "prompt_text"
        raise ParameterError(missing, None, "both prompt and prompt_text, or neither")
    mode = _MODES[reference is not None, prompt is not None]
    _check_family(config.family, mode, reference, description)
    target, spoken = _texts(text, prompt_text, description)
    target_ids = tokenizer.encode(target)
    if not target_ids:
        raise TextError("text", text, "text with characters that the tokenizer knows")
    spoken_ids = target_ids if spoken == target else tokenizer.encode(spoken)
    text_ids = [*spoken_ids, AUDIO_START_ID]

    ids: list[int] = []
    spans: list[AudioSpan] = []
    if reference is not None:
        span = _span("reference", 1, reference, config.patch_samples_in)
        ids += [REF_START_ID, *[config.audio_patch_id] * span.n_patches, REF_END_ID]
        spans.append(span)
    ids += text_ids
    if prompt is not None:
        span = _span("prompt", len(ids), prompt, config.patch_samples_in)
        ids += [config.audio_patch_id] * span.n_patches
        spans.append(span)

    _check_context(text, len(ids), len(text_ids), context_len or config.max_length)
    return SpeechPrompt(ids, tuple(spans), len(target_ids), mode)


_MODES: dict[tuple[bool, bool], Mode] = {
    (False, False): "zero_shot",
    (True, False): "reference",
    (False, True): "continuation",
    (True, True): "reference_continuation",
}


def _check_family(
    family: Family, mode: Mode, reference: np.ndarray | None, description: str | None
) -> None:
    """Refuse what the model was not trained on."""
    modes = ", ".join(family.modes)
    if mode not in family.modes:
        raise ParameterError(
            "reference",
            reference,
            f"no reference: {family.architecture} has the modes {modes}. Its way to a voice is"
            " a prompt with its prompt_text, which it continues",
        )
    if description is not None and not family.takes_description:
        raise ParameterError(
            "description",
            description,
            f"no description: {family.architecture} has the modes {modes}, without voices in words",
        )


def _texts(text: str, prompt_text: str | None, description: str | None) -> tuple[str, str]:
    """The target text, and everything that is tokenised: the target behind the prompt's text."""
    target = _clean("text", text).rstrip()
    if prompt_text is None:
        target = target.lstrip()
        if description is not None:
            target = f"({_clean('description', description).strip()}){target}"
        return target, target
    if description is not None:
        raise ParameterError("description", description, "no description beside a prompt")
    # Joined as given, like the reference: a space between the two is the caller's to write.
    return target, _clean("prompt_text", prompt_text).lstrip() + target


def _clean(field: str, text: str) -> str:
    """Text with runs of white space made one space; refuses what cannot be spoken."""
    if not isinstance(text, str):
        raise TextError(field, text, "a string")
    if not text.strip():
        raise TextError(field, text, "text with at least one visible character")
    if _SURROGATE.search(text):
        raise TextError(field, text, "Unicode text without lone surrogates")
    return _WHITE_SPACE.sub(" ", text)


def _span(role: Role, offset: int, samples: np.ndarray, patch_samples: int) -> AudioSpan:
    """Pad a recording to whole patches: a reference on the right, a prompt on the left."""
    if len(samples) == 0:
        raise AudioInputError(role, samples, "a recording that is not empty")
    n_padding = -len(samples) % patch_samples
    sides = (0, n_padding) if role == "reference" else (n_padding, 0)
    padded = np.pad(samples.astype(np.float32, copy=False), sides)
    digest = hashlib.sha256(role.encode() + padded.tobytes()).hexdigest()
    return AudioSpan(role, offset, len(padded) // patch_samples, padded, digest)


def _check_context(text: str, n_positions: int, n_text: int, context_len: int) -> None:
    if n_positions < context_len:
        return
    n_audio = n_positions - n_text
    raise TextError(
        "text",
        text,
        f"at most {context_len - 1} positions (a context of {context_len} less one to speak); "
        f"this takes {n_positions}: {n_text} for text and {n_audio} for recordings",
    )


def default_max_steps(n_target_tokens: int, max_steps: int, ratio: float = STEPS_PER_TOKEN) -> int:
    """Most patches of a request: what was asked for, or what its text can need.

    Source: voxcpm 2.0.3, `VoxCPM2Model._generate` (`max_len`).
    """
    return min(max_steps, int(ratio * n_target_tokens + STEPS_MARGIN))
