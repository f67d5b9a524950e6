"""The device side path against one `decode_step` a request, over many steps of a changing batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from tests.checkpoints import write_checkpoint
from voxnative.config import VoxConfig
from voxnative.decode_step import decode_step, prime_continuation
from voxnative.nn.cfm import solve, sway_grid
from voxnative.nn.flow_plan import FlowPlan, solve_planned
from voxnative.nn.local_dit import LocalDiT
from voxnative.nn.speech_nets import SpeechNets
from voxnative.nn.vae_stream import StreamDecoder
from voxnative.request_state import RequestStates, StepParams
from voxnative.side_path import SidePath

N_SLOTS = 6
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["voxcpm2", "voxcpm"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VoxConfig:
    folder = tmp_path_factory.mktemp("checkpoint")
    directory: Path = write_checkpoint(folder, architecture=request.param)
    return VoxConfig.from_dir(directory)


@pytest.fixture(scope="module")
def nets(config: VoxConfig) -> SpeechNets:
    torch.manual_seed(0)
    return SpeechNets(config).eval().requires_grad_(False)


def new_side_path(config: VoxConfig, nets: SpeechNets) -> SidePath:
    decoder = StreamDecoder(nets.audio_vae)
    return SidePath(nets, decoder, config, N_SLOTS, torch.float32, CPU, graph_timesteps=(4,))


@dataclass
class Oracle:
    """One request alone in a container of its own."""

    states: RequestStates
    waves: list[Tensor] = field(default_factory=list)

    def step(self, nets: SpeechNets, hidden: Tensor) -> Tensor:
        halves = hidden.unsqueeze(0).chunk(2, dim=-1)
        (wave,) = decode_step(nets, self.states, [0], *halves)
        return wave


def new_oracle(config: VoxConfig, nets: SpeechNets, params: StepParams) -> Oracle:
    states = RequestStates(config, nets.audio_vae, 1, params.max_steps, torch.float32, CPU)
    states.add("x", params)
    return Oracle(states)


def test_a_changing_batch_equals_each_request_alone(config: VoxConfig, nets: SpeechNets) -> None:
    """Random admissions, ends, preemptions, mid-prefill rows and padding over 30 steps."""
    chance = random.Random(1)
    generator = torch.Generator().manual_seed(1)
    side = new_side_path(config, nets)
    oracles: dict[str, Oracle] = {}
    free, n_made, largest = list(range(N_SLOTS)), 0, 0.0
    n_preempted = n_resumed = n_compared = 0
    preempted: list[str] = []
    for _ in range(30):
        running = [r for r, slot in side.slot_of.items() if slot is not None]
        for request_id in running:
            slot = side.live[request_id].slot
            fate = chance.random()
            if fate < 0.06:
                side.remove(request_id)
                free.append(slot)
            elif fate < 0.16 and side.live[request_id].n_steps:
                side.park(request_id)
                preempted.append(request_id)
                free.append(slot)
                n_preempted += 1
        chance.shuffle(free)
        while free and preempted and chance.random() < 0.7:
            request_id = preempted.pop()
            history = side.live[request_id].history
            kept = side.replay(request_id, len(history))
            expected = oracles[request_id].states.history[0]
            assert (kept - torch.stack(expected)).abs().max() < 1e-5
            side.add(request_id, free.pop(), side.live[request_id].params)
            n_resumed += 1
        while free and chance.random() < 0.6:
            request_id, n_made = f"r{n_made}", n_made + 1
            params = StepParams(n_made, 1.0 + n_made % 3, chance.choice((4, 4, 3)), 0.9, 64)
            side.add(request_id, free.pop(), params)
            oracles[request_id] = new_oracle(config, nets, params)
            if chance.random() < 0.4:
                context = torch.randn(3, config.patch_size, config.feat_dim, generator=generator)
                side.prime(request_id, context)
                prime_continuation(nets, oracles[request_id].states, 0, context)
        running = [r for r, slot in side.slot_of.items() if slot is not None]
        chosen = [r for r in running if chance.random() < 0.85]  # the rest is in mid-prefill
        chance.shuffle(chosen)
        if not chosen:
            continue
        n_tokens = 3 * len(chosen)
        hidden = torch.randn(n_tokens, 2 * config.lm.hidden_size, generator=generator)
        token_rows = np.array(chance.sample(range(n_tokens), len(chosen)))
        rows = list(range(0, 2 * len(chosen), 2))
        parts = side.step(rows, [side.live[r] for r in chosen], token_rows, hidden)
        got = dict(zip(rows, [None] * len(rows), strict=True))
        for part in parts:
            got.update(zip(part.rows, side.deliver(part), strict=True))
        for i, request_id in enumerate(chosen):
            wave = oracles[request_id].step(nets, hidden[token_rows[i]])
            difference = float((got[rows[i]] - wave).abs().max())
            largest, n_compared = max(largest, difference), n_compared + 1
            slot = side.live[request_id].slot
            embed = oracles[request_id].states.history[0][-1]
            assert (side.state.next_embed[slot] - embed).abs().max() < 1e-5
    print(f"{n_compared} patches, {n_preempted} preemptions, largest difference {largest:.2e}")
    assert n_compared > 60
    assert n_resumed > 3
    assert largest < 1e-5


def test_padding_is_not_seen_by_real_rows(config: VoxConfig, nets: SpeechNets) -> None:
    """Three rows run in a bucket of four: slots that are not in the batch keep their content."""
    side = new_side_path(config, nets)
    for slot in range(4):
        side.add(str(slot), slot, StepParams(slot, 2.0, 4, 1.0, 8))
    side.state.tails.copy_(torch.randn(side.state.tails.shape))
    side.state.previous_patch.copy_(torch.randn(side.state.previous_patch.shape))
    side.state.previous_patch[side.state.scratch] = float("nan")  # as garbage as it gets
    before = [tensor.clone() for tensor in side.state._tensors()]
    hidden = torch.randn(5, 2 * config.lm.hidden_size)
    side.buckets = side._sample_call.buckets = (4, N_SLOTS)
    for call in side._patch_calls.values():
        call.buckets = (4, N_SLOTS)
    (part,) = side.step([0, 1, 2], [side.live[r] for r in "013"], np.array([0, 2, 4]), hidden)
    assert all(wave.isfinite().all() for wave in side.deliver(part))
    untouched = [2, 4, 5]
    for tensor, old in zip(side.state._tensors(), before, strict=True):
        assert torch.equal(tensor[untouched], old[untouched])
        assert not torch.equal(tensor[[0, 1, 3]], old[[0, 1, 3]])
        assert tensor[[0, 1, 3]].isfinite().all()


def test_a_step_keeps_no_memory_of_an_earlier_one(config: VoxConfig, nets: SpeechNets) -> None:
    """Samples are sent by reference while later steps run (each step has host storage)."""
    side = new_side_path(config, nets)
    side.add("a", 0, StepParams(0, 2.0, 4, 1.0, 8))
    hidden = torch.randn(1, 2 * config.lm.hidden_size)
    first = side.deliver(side.step([0], [side.live["a"]], np.array([0]), hidden)[0])[0]
    kept = first.clone()
    second = side.deliver(side.step([0], [side.live["a"]], np.array([0]), hidden)[0])[0]
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    assert torch.equal(first, kept)
    assert first.shape == (config.patch_samples_out,)
    assert first.dtype == torch.float32


def test_a_surplus_step_after_the_end_is_inert(config: VoxConfig, nets: SpeechNets) -> None:
    """A stop is seen one step late: the request's next patch is queued, then it is removed."""
    side = new_side_path(config, nets)
    for name in "ab":
        side.add(name, ord(name) - 97, StepParams(7, 2.0, 4, 1.0, max_steps=1))
    hidden = torch.randn(2, 2 * config.lm.hidden_size)
    a, b = side.live["a"], side.live["b"]
    alone = new_oracle(config, nets, StepParams(7, 2.0, 4, 1.0, max_steps=8))
    side.step([0, 1], [a, b], np.array([0, 1]), hidden)
    surplus = side.step([0, 1], [a, b], np.array([0, 1]), hidden)[0]
    side.remove("a")
    waves = side.deliver(surplus)  # the request that ended is no longer known
    assert list(side.live) == ["b"]
    alone.step(nets, hidden[1])
    assert (waves[1] - alone.step(nets, hidden[1])).abs().max() < 1e-5


def test_the_step_has_no_host_sync(config: VoxConfig, nets: SpeechNets) -> None:
    """Fake tensors have no values: any `.item()`, `.tolist()` or branch on one raises."""
    side = new_side_path(config, nets)
    side.add("a", 0, StepParams(0, 2.0, 4, 1.0, 8))
    plan = FlowPlan(nets.feat_decoder.estimator, 3, CPU, mean_mode=False)
    with FakeTensorMode(allow_non_fake_inputs=True):
        side._make_patches(plan, 4)
        side._make_samples(4)


@pytest.mark.parametrize(
    "sync",
    [
        lambda x: x * x[0].item(),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: x + 1 if x.sum() > 0 else x,
    ],
)
def test_fake_tensors_notice_a_sync(sync: Callable[[Tensor], Any]) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.randn(4)
        with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
            sync(x)


@pytest.mark.parametrize("n_mu_tokens", [1, 2])
def test_a_planned_solve_is_the_solve(n_mu_tokens: int, config: VoxConfig) -> None:
    torch.manual_seed(0)
    estimator = LocalDiT(config.dit, config.feat_dim, config.patch_size, n_mu_tokens)
    estimator.requires_grad_(False)
    B, P, D = 3, config.patch_size, config.feat_dim
    noise, cond = torch.randn(2, B, P, D)
    mu = torch.randn(B, n_mu_tokens * config.dit.hidden_size)
    cfg = torch.tensor([1.0, 2.0, 3.0])
    for n_timesteps in (2, 10):
        plan = FlowPlan(estimator, n_timesteps, CPU, mean_mode=False)
        planned = solve_planned(estimator, plan, noise, mu=mu, cond=cond, cfg=cfg)
        plain = solve(estimator, noise, sway_grid(n_timesteps), mu=mu, cond=cond, cfg=cfg)
        assert (planned - plain).abs().max() < 1e-5
