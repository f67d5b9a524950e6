"""One call's arguments -> a validated request (prompt, parameters, cap), before any engine."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from voxnative.audio_input import AudioSource, load_audio
from voxnative.config import VoxConfig
from voxnative.params import SpeechParams, steps_for_seconds
from voxnative.prompt import SpeechPrompt, Tokenizer, build_prompt, default_max_steps
from voxnative.units import MAX_REFERENCE_S, MAX_SEED, MAX_STEPS


@dataclass(frozen=True)
class SpeechRequest:
    """What the engine needs of one call.

    Attributes:
        prompt: ids and recordings.
        params: validated parameters with a seed.
        n_max_steps: cap on the number of patches.
    """

    prompt: SpeechPrompt
    params: SpeechParams
    n_max_steps: int


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

        Raises:
            InvalidRequestError: names the field, its value and what is valid.
        """
        given = {
            "seed": seed,
            "cfg": self.config.cfm.inference_cfg_rate if cfg is None else cfg,
            "timesteps": timesteps,
            "temperature": temperature,
            "max_steps": max_steps,
            "min_steps": min_steps,
        }
        params = SpeechParams(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
        cap = MAX_STEPS if params.max_steps is None else params.max_steps
        if max_seconds is not None:
            patch_s = self.config.patch_samples_out / self.config.vae.out_sample_rate_hz
            cap = min(cap, steps_for_seconds(max_seconds, patch_s))
        rate = self.config.vae.sample_rate_hz
        recordings = {
            field: load_audio(source, field=field, sample_rate_hz=rate, max_s=MAX_REFERENCE_S)
            for field, source in (("reference", reference), ("prompt", prompt))
            if source is not None
        }
        if self.config.text_frontend == "english":
            from voxnative.text_frontend import normalize

            text = normalize(text)
            prompt_text = prompt_text if prompt_text is None else normalize(prompt_text)
        laid_out = build_prompt(
            text,
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
        n_max_steps = min(default_max_steps(laid_out.n_target_tokens, cap), room)
        return SpeechRequest(laid_out, params, n_max_steps)
