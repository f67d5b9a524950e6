"""The oracle itself: it must be the reference's loop, not something that resembles it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from tests.checkpoints import TRAINED_TINY, write_checkpoint
from tests.parity.conftest import Pair
from tests.reference import draw_noise, load_reference, reference_generate
from voxnative.family import Mode


def test_noise_is_what_the_reference_draws(pair: Pair) -> None:
    """The untouched public method after `torch.manual_seed`, against the oracle's own noise."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        _, _, latents = load_reference(pair.directory).generate_with_prompt_cache(
            "hello", None, min_len=6, max_len=6, inference_timesteps=3
        )
    ours = reference_generate(pair.directory, "hello", seed=11, n_steps=6, timesteps=3)
    assert torch.equal(ours.latents, latents)
    assert ours.audio.shape == (6 * pair.config.patch_samples_out,)
    given = reference_generate(
        pair.directory, "hello", noise=draw_noise(pair.directory, 11, 6), n_steps=6, timesteps=3
    )
    assert torch.equal(given.latents, latents)


def test_too_little_noise_is_an_error(pair: Pair) -> None:
    noise = draw_noise(pair.directory, 0, 3)
    with pytest.raises(ValueError, match="3 rows of noise"):
        reference_generate(pair.directory, "hello", noise=noise, n_steps=4, timesteps=2)


def test_prompt_modes_differ_and_generation_stays_alive(pair: Pair, voice_16k: np.ndarray) -> None:
    modes: dict[Mode, dict[str, Any]] = {
        "zero_shot": {},
        "reference": {"reference": voice_16k},
        "continuation": {"prompt": voice_16k[:7000], "prompt_text": "yes "},
        "reference_continuation": {
            "reference": voice_16k,
            "prompt": voice_16k[:7000],
            "prompt_text": "yes ",
        },
    }
    last_patch = {}
    for mode in pair.config.family.modes:
        audio = modes[mode]
        made = reference_generate(
            pair.directory, "hello world", n_steps=24, timesteps=4, **audio
        ).latents
        last_patch[mode] = made[-1]
        assert made.shape == (24, pair.config.patch_size, pair.config.feat_dim), mode
        assert 0.05 < made[-10:].std() < 10, f"{mode}: collapsed or exploded"
        assert (made[-1] - made[-2]).abs().mean() > 0.01, f"{mode}: repeats itself"
    for one, other in combinations(last_patch, 2):
        assert (last_patch[one] - last_patch[other]).abs().max() > 0.05, (one, other)


def test_stop_head_ends_speech(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The trained checkpoint stops by itself; a random one with no margin does early."""
    spoken = reference_generate(TRAINED_TINY, "hello world", cfg=3.0, seed=1)
    assert spoken.stop_flags[-1]
    assert 5 < len(spoken.latents) < 6 * len("hello world") + 10
    random = write_checkpoint(tmp_path_factory.mktemp("stops"), stop_margin=0.0)
    stopped = reference_generate(random, "hello world", seed=1)
    assert stopped.stop_flags[-1]
    assert 3 < len(stopped.latents) < 76
    assert not stopped.stop_flags[3:-1].any()
