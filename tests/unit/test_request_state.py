"""The per-request container: owned by request id, cleared by add and remove alone."""

from __future__ import annotations

import pytest
import torch

from voxnative.config import VoxConfig
from voxnative.nn.audio_vae import AudioVAE
from voxnative.request_state import RequestStates, StepParams

PARAMS = StepParams(seed=3, cfg=2.0, timesteps=10, temperature=1.0, max_steps=20)


@pytest.fixture
def states(tiny_config: VoxConfig) -> RequestStates:
    vae = AudioVAE(tiny_config.vae)
    return RequestStates(tiny_config, vae, 2, 50, torch.float32, torch.device("cpu"))


def test_noise_depends_on_the_seed_alone(states: RequestStates) -> None:
    first = states.add("a", PARAMS)
    noise = states.noise[first, :20].clone()
    second = states.add("b", PARAMS)
    assert torch.equal(states.noise[second, :20], noise)
    states.remove("a")
    assert torch.equal(states.noise[states.add("c", PARAMS), :20], noise)


def test_noise_is_what_the_reference_draws_step_by_step(states: RequestStates) -> None:
    config = states.config
    generator = torch.Generator().manual_seed(PARAMS.seed)
    slot = states.add("a", PARAMS)
    for step in range(20):
        drawn = torch.randn((1, config.feat_dim, config.patch_size), generator=generator)
        assert torch.equal(states.noise[slot, step], drawn[0].T)


def test_noise_is_drawn_for_the_cap_only(states: RequestStates) -> None:
    slot = states.add("a", PARAMS)
    assert states.noise[slot, 19].abs().min() > 0
    assert torch.count_nonzero(states.noise[slot, 20:]) == 0
    longer_than_the_context = StepParams(3, 2.0, 10, 1.0, max_steps=10_000)
    slot = states.add("b", longer_than_the_context)
    assert states.noise[slot].abs().min() > 0


def test_a_slot_is_clean_for_the_next_request(states: RequestStates) -> None:
    slot = states.add("a", PARAMS)
    states.step[slot] = 5
    states.previous_patch[slot] = 1.0
    states.history[slot].append(torch.ones(3))
    for tail in states.vae_tails:
        tail[slot] = 1.0
    states.remove("a")
    assert "a" not in states
    assert states.add("b", PARAMS) == slot
    assert states.step[slot] == 0
    assert states.history[slot] == []
    assert torch.count_nonzero(states.previous_patch[slot]) == 0
    assert all(torch.count_nonzero(tail[slot]) == 0 for tail in states.vae_tails)


def test_more_requests_than_slots_keep_their_state(states: RequestStates) -> None:
    """Preempted requests keep their slots while others run."""
    first = states.add("a", PARAMS)
    states.previous_patch[first] = 7.0
    noise = states.noise[first].clone()
    for name in "bcdefg":
        states.add(name, PARAMS)
    assert len(states) == 7
    assert len(set(states.slot_of.values())) == 7
    assert torch.equal(states.noise[first], noise)
    assert (states.previous_patch[first] == 7.0).all()


def test_removing_an_unknown_request_changes_nothing(states: RequestStates) -> None:
    states.add("a", PARAMS)
    states.remove("never scheduled")
    assert list(states.slot_of) == ["a"]
