"""Refuse, before the engine sees it, a request that cannot become speech."""

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext
from vllm.v1.worker.gpu.sample.logits_processor.interface import (
    LogitsProcessor as LogitsProcessorV2,
)

from voxnative.engine.engine_input import EXTRA_ARGS_KEY, SPEECH_ARGUMENTS
from voxnative.errors import ParameterError
from voxnative.params import SpeechParams
from voxnative.units import MAX_STEPS


class SpeechAdmission(LogitsProcessor):
    """A logits processor for its ``validate_params`` hook alone; logits pass unchanged.

    vLLM calls the hook in the front end for every request, so that a text completion
    sent to a speech model is a client's error and not an exception in the worker.

    Source: vLLM 0.32, ``vllm/v1/sample/logits_processor/interface.py``.
    """

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Check one request's parameters.

        Raises:
            VLLMValidationError: names the parameter and what is valid.
        """
        check_sampling_params(sampling_params)

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass


class SpeechAdmissionV2(LogitsProcessorV2):
    """The same for Model Runner V2, whose processors have an interface of their own.

    Source: vLLM 0.32, ``vllm/v1/worker/gpu/sample/logits_processor/interface.py``.
    """

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Check one request's parameters.

        Raises:
            VLLMValidationError: names the parameter and what is valid.
        """
        check_sampling_params(sampling_params)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        return False

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        return logits


def check_sampling_params(sampling_params: SamplingParams) -> None:
    """Refuse what cannot become speech.

    Raises:
        VLLMValidationError: names the parameter and what is valid.
    """
    p = sampling_params
    _check_speech_arguments((p.extra_args or {}).get(EXTRA_ARGS_KEY))
    wrong = {
        "n": (p.n, p.n == 1, "1"),
        "temperature": (p.temperature, p.temperature == 0, "0 (the stop decision is greedy)"),
        "logprobs": (p.logprobs, p.logprobs is None, "unset"),
        "prompt_logprobs": (p.prompt_logprobs, p.prompt_logprobs is None, "unset"),
        "structured_outputs": (
            p.structured_outputs,
            p.structured_outputs is None,
            "unset",
        ),
        "seed": (p.seed, p.seed is not None, "an integer: it determines the audio"),
        "max_tokens": (
            p.max_tokens,
            p.max_tokens is not None and p.max_tokens <= MAX_STEPS,
            f"1 to {MAX_STEPS} (patches)",
        ),
    }
    for name, (value, is_valid, valid) in wrong.items():
        if not is_valid:
            raise VLLMValidationError(
                f"{name}={value!r} is not valid for speech; valid: {valid}",
                parameter=name,
                value=value,
            )


def _check_speech_arguments(given: object) -> None:
    """The speech part of ``extra_args``, as ``engine_input.sampling_params`` writes it."""
    if not isinstance(given, dict) or given.keys() != SPEECH_ARGUMENTS:
        raise VLLMValidationError(
            "this model makes speech, not text: use /v1/audio/speech or the voxnative API "
            f"(they set extra_args[{EXTRA_ARGS_KEY!r}] to {', '.join(sorted(SPEECH_ARGUMENTS))})",
            parameter="extra_args",
        )
    try:
        SpeechParams(**given)
    except ParameterError as error:
        raise VLLMValidationError(str(error), parameter="extra_args", value=given) from error
