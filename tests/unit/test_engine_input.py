"""Rendered inputs and sampling parameters, as vLLM takes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.feature_extraction_utils import BatchFeature
from vllm import SamplingParams
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from voxnative.config import VoxConfig
from voxnative.engine.engine_input import engine_input, sampling_params, step_params
from voxnative.engine.processor import WAVEFORM_KEY, audio_fields
from voxnative.params import SpeechParams
from voxnative.prompt import SpeechPrompt, build_prompt

BLOCK = 16


@pytest.fixture(scope="module")
def prompt(tiny_config: VoxConfig, tiny_tokenizer, voice_16k: np.ndarray) -> SpeechPrompt:
    return build_prompt(
        "a text that fills some blocks of the cache",
        config=tiny_config,
        tokenizer=tiny_tokenizer,
        reference=np.tile(voice_16k, 3),
    )


def block_hashes(prompt: SpeechPrompt, request_id: str, config: VoxConfig, n_steps: int) -> list:
    """Hashes of a request's full blocks after ``n_steps`` generated positions, by vLLM itself."""
    rendered = engine_input(prompt, request_id)
    from vllm.multimodal.inputs import MultiModalFeatureSpec
    from vllm.multimodal.utils import argsort_mm_positions

    features = [
        MultiModalFeatureSpec(
            data=rendered["mm_kwargs"][modality][i],
            modality=modality,
            identifier=rendered["mm_hashes"][modality][i],
            mm_position=rendered["mm_placeholders"][modality][i],
        )
        for modality, i in argsort_mm_positions(rendered["mm_placeholders"])
    ]
    init_none_hash(sha256)
    request = Request(
        request_id=request_id,
        prompt_token_ids=rendered["prompt_token_ids"],
        sampling_params=sampling_params(SpeechParams(seed=1), 100, config),
        pooling_params=None,
        mm_features=features,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )
    request.append_output_token_ids([config.continue_id] * n_steps)
    return list(request.block_hashes)


def test_generated_blocks_are_the_requests_own(
    prompt: SpeechPrompt, tiny_config: VoxConfig
) -> None:
    """Two requests of one prompt share every block before the last prompt position, none after.

    All generated positions carry the id "continue"; without the marker the second request
    could resume on the first one's generated KV.
    """
    n_steps = 4 * BLOCK
    first = block_hashes(prompt, "first", tiny_config, n_steps)
    second = block_hashes(prompt, "second", tiny_config, n_steps)
    n_shareable = (len(prompt.token_ids) - 1) // BLOCK
    assert n_shareable >= 3
    assert len(first) >= n_shareable + 4
    assert first[:n_shareable] == second[:n_shareable]
    assert not set(first[n_shareable:]) & set(second[n_shareable:])
    # The same request, looked up again after a preemption, finds its own blocks.
    assert block_hashes(prompt, "first", tiny_config, n_steps) == first


def test_the_marker_holds_no_embedding(prompt: SpeechPrompt) -> None:
    (marker,) = engine_input(prompt, "r")["mm_placeholders"]["request_marker"]
    assert marker.offset == len(prompt.token_ids) - 1
    assert (marker.length, marker.get_num_embeds()) == (1, 0)


def test_the_items_are_those_of_vllm_s_own_path(prompt: SpeechPrompt) -> None:
    """As ``MultiModalKwargsItems`` splits what the processor returns."""
    marker = {"marker": MultiModalFieldConfig.batched("request_marker")}
    samples = [torch.from_numpy(span.samples) for span in prompt.spans]
    features = BatchFeature({"marker": [torch.zeros(1)], WAVEFORM_KEY: samples})
    expected = MultiModalKwargsItems.from_hf_inputs(features, {**audio_fields(), **marker})
    items = engine_input(prompt, "r")["mm_kwargs"]
    assert len(samples) == 1
    assert items == expected


def test_what_is_the_same_for_all_requests_is_made_once(prompt: SpeechPrompt) -> None:
    one, other = engine_input(prompt, "one"), engine_input(prompt, "other")
    for part in ("mm_kwargs", "mm_placeholders"):
        assert one[part]["request_marker"][0] is other[part]["request_marker"][0]  # type: ignore[literal-required]
    assert one["mm_hashes"]["request_marker"] != other["mm_hashes"]["request_marker"]
    assert one["prompt_token_ids"] is not other["prompt_token_ids"]


def test_vllm_copies_no_part_of_the_parameters(tiny_config: VoxConfig) -> None:
    sampling = sampling_params(SpeechParams(seed=1), 100, tiny_config)
    copied = sampling.clone()
    assert copied is not sampling
    assert copied.extra_args is sampling.extra_args
    other = sampling_params(SpeechParams(seed=1), 100, tiny_config)
    assert other.extra_args is not sampling.extra_args


def test_stop_rule_as_min_tokens(tiny_config: VoxConfig) -> None:
    """min_tokens = N masks outputs 0..N-1; the stop head is ignored for steps 0..min_steps."""
    sampling = sampling_params(SpeechParams(seed=1, min_steps=2), 100, tiny_config)
    assert (sampling.min_tokens, sampling.max_tokens) == (3, 100)
    assert sampling.stop_token_ids == [tiny_config.stop_id]
    assert sampling_params(SpeechParams(seed=1), 2, tiny_config).min_tokens == 2


def test_parameters_reach_the_worker(tiny_config: VoxConfig) -> None:
    asked = SpeechParams(seed=7, cfg=3.5, timesteps=6, temperature=0.8)
    got = step_params(sampling_params(asked, 30, tiny_config))
    assert (got.seed, got.cfg, got.timesteps, got.temperature, got.max_steps) == (
        7,
        3.5,
        6,
        0.8,
        30,
    )


def test_foreign_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="front end"):
        step_params(SamplingParams(max_tokens=5))
