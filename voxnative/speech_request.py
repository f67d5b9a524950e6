"""One call's arguments -> a validated request (prompt, parameters, cap), before any engine."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from voxnative.audio_input import AudioSource, load_audio
from voxnative.config import VoxConfig
from voxnative.errors import ParameterError, TextError
from voxnative.params import BadCaseRule, SpeechParams, another_seed, steps_for_seconds
from voxnative.prompt import SpeechPrompt, Tokenizer, build_prompt, default_max_steps
from voxnative.sentences import is_speakable
from voxnative.units import (
    BADCASE_MAX_TIMES,
    MAX_REFERENCE_S,
    MAX_SEED,
    MAX_STEPS,
    STEPS_PER_TOKEN,
)

if TYPE_CHECKING:
    from voxnative.engine.lora_registry import LoadedLoRA


# About a millisecond's work; the most that the event loop is held up for by one text.
QUICK_CHARS = 400


def is_quick(text: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether a request is built sooner than a thread can be asked to: a short text alone.

    Args:
        text: what to speak.
        arguments: as `RequestBuilder.build`.
    """
    recordings = arguments.get("reference"), arguments.get("prompt")
    if arguments.get("normalize") or any(recording is not None for recording in recordings):
        return False
    texts = text, arguments.get("description")
    return sum(len(part) for part in texts if isinstance(part, str)) <= QUICK_CHARS


@dataclass(frozen=True)
class SpeechRequest:
    """What the engine needs of one call.

    Attributes:
        prompt: ids and recordings.
        params: validated parameters with a seed.
        n_max_steps: cap on the number of patches.
        bad_case: which audio is too long for the text, and what is done about it.
        lora: the adapter to speak with.
    """

    prompt: SpeechPrompt
    params: SpeechParams
    n_max_steps: int
    bad_case: BadCaseRule = field(default_factory=BadCaseRule)
    lora: LoadedLoRA | None = None

    @property
    def seed(self) -> int:
        """The request's own seed, given or drawn."""
        assert self.params.seed is not None
        return self.params.seed

    def streamed(self) -> SpeechRequest:
        """This request for a stream.

        Raises:
            ParameterError: `retry_badcase`: what was heard cannot be taken back.
        """
        if self.bad_case.retry:
            raise ParameterError("retry_badcase", True, "false while streaming")
        return self

    def attempt(self, number: int) -> SpeechRequest:
        """The same request with the seed of an attempt, 0 for the first."""
        params = replace(self.params, seed=another_seed(self.seed, number))
        return replace(self, params=params)

    def is_bad_case(self, n_patches: int) -> bool:
        """Whether so many patches are too many for the text."""
        return self.bad_case.is_bad(n_patches, self.prompt.n_target_tokens)


@dataclass(frozen=True)
class RequestBuilder:
    """Builds requests for one checkpoint.

    Attributes:
        config: the checkpoint's configuration.
        tokenizer: its tokenizer.
        context_len: positions of the engine (``max_model_len``).
    """

    config: VoxConfig
    tokenizer: Tokenizer
    context_len: int

    def build(
        self,
        text: str,
        *,
        reference: AudioSource | None = None,
        prompt: AudioSource | None = None,
        prompt_text: str | None = None,
        description: str | None = None,
        seed: int | None = None,
        cfg: float | None = None,
        timesteps: int | None = None,
        temperature: float | None = None,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        min_steps: int | None = None,
        max_silence_s: float | None = None,
        normalize: bool = False,
        retry_badcase: bool = False,
        retry_badcase_max_times: int = BADCASE_MAX_TIMES,
        retry_badcase_ratio_threshold: float = STEPS_PER_TOKEN,
        lora: LoadedLoRA | None = None,
    ) -> SpeechRequest:
        """Validate one call.

        Args:
            text: what to speak.
            reference: a recording of the voice to speak with.
            prompt: a recording to continue; needs ``prompt_text``.
            prompt_text: what is said in ``prompt``.
            description: a voice in words (zero-shot and reference modes).
            seed: reproduces the audio; drawn when None.
            cfg: guidance weight; the checkpoint's own when None.
            timesteps: CFM steps; 10 when None.
            temperature: scale of the initial noise; 1 when None.
            max_steps: cap in patches; the smaller of the two caps counts.
            max_seconds: cap in seconds, rounded up to whole patches.
            min_steps: steps before the stop decision counts; 2 when None.
            max_silence_s: silence after which speech has run out; 3 s when None, 0 for never.
            normalize: write numbers, dates and signs as words, English or Chinese, before
                anything else (extra ``wetext``).
            retry_badcase: speak a text again, with another seed, whose audio is too long for it.
                Not while streaming.
            retry_badcase_max_times: attempts in all.
            retry_badcase_ratio_threshold: patches a token that are too many. The cap on the
                patches follows from it too.
            lora: the adapter to speak with; the model as it is when None.

        Raises:
            InvalidRequestError: names the field, its value and what is valid.
            MissingExtraError: `normalize` without the package that does it.
        """
        given = {
            "seed": seed,
            "cfg": self.config.cfm.inference_cfg_rate if cfg is None else cfg,
            "timesteps": timesteps,
            "temperature": temperature,
            "max_steps": max_steps,
            "min_steps": min_steps,
            "max_silence_s": max_silence_s,
        }
        bad_case = BadCaseRule(
            retry_badcase, retry_badcase_max_times, retry_badcase_ratio_threshold
        )
        params = SpeechParams(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
        cap = self.cap(params.max_steps, max_seconds) or MAX_STEPS
        rate = self.config.vae.sample_rate_hz
        recordings = {
            field: load_audio(source, field=field, sample_rate_hz=rate, max_s=MAX_REFERENCE_S)
            for field, source in (("reference", reference), ("prompt", prompt))
            if source is not None
        }
        words = self.spoken_form("text", text, normalize)
        if text.strip() and not is_speakable(words):
            raise TextError("text", text, "text with something to say: a letter or a digit")
        if prompt_text is not None:
            prompt_text = self.spoken_form("prompt_text", prompt_text, normalize)
        laid_out = build_prompt(
            words,
            config=self.config,
            tokenizer=self.tokenizer,
            prompt_text=prompt_text,
            description=description,
            context_len=self.context_len,
            reference=recordings.get("reference"),
            prompt=recordings.get("prompt"),
        )
        if params.seed is None:
            params = replace(params, seed=secrets.randbelow(MAX_SEED + 1))
        room = self.context_len - len(laid_out.token_ids)
        own_cap = default_max_steps(laid_out.n_target_tokens, cap, bad_case.ratio)
        return SpeechRequest(laid_out, params, min(own_cap, room), bad_case, lora)

    def cap(self, max_steps: int | None, max_seconds: float | None) -> int | None:
        """The smaller of two caps in patches; None where there is none."""
        caps = [] if max_steps is None else [max_steps]
        if max_seconds is not None:
            patch_s = self.config.patch_samples_out / self.config.vae.out_sample_rate_hz
            caps.append(steps_for_seconds(max_seconds, patch_s))
        return min(caps, default=None)

    def n_tokens(self, text: str, normalize: bool = False) -> int:
        """Tokens of a text, as they count against the context."""
        return len(self.tokenizer.encode(self.spoken_form("text", text, normalize)))

    def spoken_form(self, field: str, text: str, normalize: bool = False) -> str:
        """The text as the tokenizer gets it: normalised where that is asked for, and through
        the checkpoint's own front end. A space at either end stays: a prompt's text may meet it.
        """
        if not isinstance(text, str):
            raise TextError(field, text, "a string")
        words = text
        if normalize:
            from voxnative.text_normalizer import to_words

            words = to_words(words)
        if self.config.text_frontend == "english":
            from voxnative.text_frontend import normalize as english

            words = english(words)
        if words is text:
            return text
        before = " " if text[:1].isspace() else ""
        after = " " if text[-1:].isspace() else ""
        return f"{before}{words.strip()}{after}"
