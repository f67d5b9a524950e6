"""A :class:`~voxnative.prompt.SpeechPrompt` and its parameters as vLLM takes them."""

from functools import lru_cache

import torch
from vllm import SamplingParams
from vllm.inputs.engine import MultiModalInput, mm_input
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.sampling_params import RequestOutputKind

from voxnative.config import VoxConfig
from voxnative.engine.processor import AUDIO_MODALITY, WAVEFORM_KEY
from voxnative.params import SpeechParams
from voxnative.prompt import AudioSpan, SpeechPrompt
from voxnative.request_state import StepParams

# Modality of the item that makes a request's blocks its own; see `request_marker`.
MARKER_MODALITY = "request_marker"
_MARKER = MultiModalKwargsItem(
    {"marker": MultiModalFieldElem(torch.zeros(1), MultiModalBatchedField())}
)
EXTRA_ARGS_KEY = "voxnative"
SPEECH_ARGUMENTS = frozenset(("cfg", "timesteps", "temperature"))


@lru_cache(maxsize=4096)  # few positions, and its mask's sum is a tensor operation
def request_marker(last_position: int) -> PlaceholderRange:
    """A placeholder of one position and no embedding, on the last position of the prompt.

    vLLM hashes a KV block from its ids, its multimodal items and its parent block.
    Generated positions all carry the same id, so without a distinction a request could
    resume on the generated KV of another with the same prompt. The marker's identifier
    is unique per request and enters the hash of every block from the last prompt
    position on, while all blocks before it (a reference voice) stay shareable.
    """
    return PlaceholderRange(
        offset=last_position, length=1, is_embed=torch.zeros(1, dtype=torch.bool)
    )


def engine_input(prompt: SpeechPrompt, request_id: str) -> MultiModalInput:
    """Build the rendered input: ids, one audio item a span, and the request's marker.

    Args:
        prompt: the prompt; each span's samples are padded to whole patches.
        request_id: unique among all requests of this engine's life.

    Source: vLLM 0.32, ``vllm/inputs/engine.py:mm_input``.
    """
    items = {MARKER_MODALITY: [_MARKER]}
    hashes = {MARKER_MODALITY: [f"request-{request_id}"]}
    placeholders = {MARKER_MODALITY: [request_marker(len(prompt.token_ids) - 1)]}
    if prompt.spans:
        items[AUDIO_MODALITY] = [_audio_item(span) for span in prompt.spans]
        hashes[AUDIO_MODALITY] = [span.digest for span in prompt.spans]
        placeholders[AUDIO_MODALITY] = [
            PlaceholderRange(offset=span.offset, length=span.n_patches) for span in prompt.spans
        ]
    return mm_input(list(prompt.token_ids), MultiModalKwargsItems(items), hashes, placeholders)


def _audio_item(span: AudioSpan) -> MultiModalKwargsItem:
    """One recording, as ``processor.audio_fields`` describes it."""
    samples = torch.from_numpy(span.samples)
    return MultiModalKwargsItem(
        {WAVEFORM_KEY: MultiModalFieldElem(samples, MultiModalBatchedField())}
    )


def sampling_params(params: SpeechParams, n_max_steps: int, config: VoxConfig) -> SamplingParams:
    """Greedy choice between "continue" and "stop"; everything else of a step in ``extra_args``.

    ``min_tokens`` masks outputs 0..N-1, and the stop rule ignores steps 0..min_steps,
    hence ``min_tokens = min_steps + 1``.

    Args:
        params: validated parameters; ``seed`` must be set.
        n_max_steps: cap on the number of patches.
        config: the checkpoint's configuration.
    """
    assert params.seed is not None, "the front end draws the seed"
    return SamplingParams(
        temperature=0.0,
        seed=params.seed,
        max_tokens=n_max_steps,
        min_tokens=min(params.min_steps + 1, n_max_steps),
        stop_token_ids=[config.stop_id],
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,  # made for one request; vLLM would copy every part of it
        extra_args={
            EXTRA_ARGS_KEY: {
                "cfg": params.cfg,
                "timesteps": params.timesteps,
                "temperature": params.temperature,
            }
        },
    )


def step_params(sampling: SamplingParams | None) -> StepParams:
    """The worker's reading of :func:`sampling_params`.

    Raises:
        ValueError: a request that was not made by voxnative's front end.
    """
    extra = (sampling.extra_args or {}).get(EXTRA_ARGS_KEY) if sampling is not None else None
    if sampling is None or extra is None or sampling.seed is None or sampling.max_tokens is None:
        raise ValueError(
            "sampling_params lack extra_args['voxnative'] or seed: send requests through "
            "voxnative's front end"
        )
    return StepParams(
        seed=sampling.seed,
        cfg=extra["cfg"],
        timesteps=extra["timesteps"],
        temperature=extra["temperature"],
        max_steps=sampling.max_tokens,
    )
