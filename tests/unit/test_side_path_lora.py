"""Adapters in the device side path: folded networks and masked rows against `decode_step`."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.checkpoints import write_checkpoint
from voxnative.config import VoxConfig
from voxnative.decode_step import decode_step
from voxnative.lora_file import DIT_PREFIX, PROJECTIONS
from voxnative.nn.flow_plan import FlowPlan
from voxnative.nn.fused import fuse_local_networks
from voxnative.nn.lora import NO_ADAPTER, NetAdapters
from voxnative.nn.speech_nets import SpeechNets
from voxnative.nn.vae_stream import StreamDecoder
from voxnative.request_state import RequestStates, StepParams
from voxnative.side_path import SidePath

N_SLOTS = 6
N_ADAPTERS, MAX_RANK = 3, 4
CPU = torch.device("cpu")
Pairs = dict[str, tuple[Tensor, Tensor]]


def with_adapters(nets: SpeechNets) -> NetAdapters:
    return NetAdapters(
        nets,
        nets.adapter_rows,
        lambda path: path.startswith(DIT_PREFIX) or path in PROJECTIONS,
        N_ADAPTERS,
        MAX_RANK,
    )


def random_pairs(adapters: NetAdapters, seed: int, rank: int, part: str = "") -> Pairs:
    """Matrices of every layer whose path holds `part`."""
    generator = torch.Generator().manual_seed(seed)
    pairs = {}
    for path, layer in adapters.layers.items():
        if part in path:
            n_in, n_out = layer.stack_a.shape[2], layer.stack_b.shape[2]
            a = torch.randn(rank, n_in, generator=generator) / n_in**0.5
            b = torch.randn(n_out, rank, generator=generator) * 0.4 / rank**0.5
            pairs[path] = a, b
    return pairs


@dataclass
class Setting:
    """Networks without folding, as `decode_step` takes them, and the same folded."""

    config: VoxConfig
    plain: SpeechNets
    fast: SpeechNets
    plain_adapters: NetAdapters
    fast_adapters: NetAdapters
    pairs: dict[str, Pairs]

    def new_side(self) -> SidePath:
        decoder = StreamDecoder(self.fast.audio_vae)
        return SidePath(self.fast, decoder, self.config, N_SLOTS, torch.float32, CPU, (4,))

    def fill(self, **slots: int) -> None:
        """Give the folded networks these adapters, by name, and no others."""
        for slot in range(1, N_ADAPTERS + 1):
            self.fast_adapters.write(slot, {})
        for name, slot in slots.items():
            self.fast_adapters.write(slot, self.pairs[name])


@pytest.fixture(scope="module", params=["voxcpm2", "voxcpm"])
def setting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("checkpoint")
    directory: Path = write_checkpoint(folder, architecture=request.param)
    config = VoxConfig.from_dir(directory)
    torch.manual_seed(0)
    plain = SpeechNets(config).eval().requires_grad_(False)
    fast = copy.deepcopy(plain)
    plain_adapters, fast_adapters = with_adapters(plain), with_adapters(fast)
    fuse_local_networks(fast, kernels=False)
    pairs = {
        "everything": random_pairs(plain_adapters, 1, MAX_RANK),
        "attention": random_pairs(plain_adapters, 2, 2, "self_attn"),
        "times": random_pairs(plain_adapters, 3, 3, "time_mlp"),
    }
    assert all(len(of_one) > 3 for of_one in pairs.values())
    for slot, of_one in enumerate(pairs.values(), 1):
        plain_adapters.write(slot, of_one)
    return Setting(config, plain, fast, plain_adapters, fast_adapters, pairs)


class Oracle:
    """One request alone, by `decode_step`."""

    def __init__(self, setting: Setting, params: StepParams, adapter: str | None) -> None:
        config, self.nets = setting.config, setting.plain
        self.states = RequestStates(config, self.nets.audio_vae, 1, 16, torch.float32, CPU)
        self.states.add("x", params)
        self.states.adapter[0] = list(setting.pairs).index(adapter) + 1 if adapter else NO_ADAPTER

    def step(self, hidden: Tensor) -> Tensor:
        halves = hidden.unsqueeze(0).chunk(2, dim=-1)
        (wave,) = decode_step(self.nets, self.states, [0], *halves)
        return wave


def run(side: SidePath, names: list[str], adapters: list[int], hidden: Tensor) -> list[Tensor]:
    """One step of these requests with the adapters' slots; hidden [len(names), 2H]."""
    requests = [side.live[name] for name in names]
    for request, adapter in zip(requests, adapters, strict=True):
        request.adapter = adapter
    rows = list(range(len(names)))
    waves: list[Tensor | None] = [None] * len(names)
    for part in side.step(rows, requests, np.array(rows), hidden):
        for row, wave in zip(part.rows, side.deliver(part), strict=True):
            waves[row] = wave
    return waves


def test_mixed_adapters_that_move_between_steps(setting: Setting) -> None:
    """Other slots, other rows, an adapter that gives way, a preemption: each row as if alone."""
    adapter_of = {"a": "everything", "b": None, "c": "attention", "d": "times", "e": "everything"}
    side = setting.new_side()
    params = {name: StepParams(i, 1.0 + i % 3, 4, 0.9, 16) for i, name in enumerate("abcde")}
    oracles = {name: Oracle(setting, params[name], adapter_of[name]) for name in "abcde"}
    for slot, name in enumerate("abcde"):
        side.add(name, slot, params[name])
    layouts = [
        ("abcde", {"everything": 1, "attention": 2, "times": 3}),
        ("edcba", {"everything": 3, "attention": 1, "times": 2}),
        ("bcd", {"attention": 3, "times": 1}),  # "a" is preempted, "e" in the middle of a prefill
        ("ea", {"everything": 1}),
        ("abcde", {"everything": 2, "attention": 3, "times": 1}),
    ]
    largest = 0.0
    for step, (names, slots) in enumerate(layouts):
        if step == 2:
            side.park("a")
        if step == 3:
            side.add("a", 5, params["a"])
        setting.fill(**slots)
        hidden = torch.randn(len(names), 2 * setting.config.lm.hidden_size)
        adapters = [slots[adapter_of[n]] if adapter_of[n] else NO_ADAPTER for n in names]
        waves = run(side, list(names), adapters, hidden)
        for name, wave, rows in zip(names, waves, hidden, strict=True):
            expected = oracles[name].step(rows)
            slot = side.live[name].slot
            embed = oracles[name].states.history[0][-1]
            patch = oracles[name].states.previous_patch[0]
            pairs = [
                (wave, expected),
                (side.state.next_embed[slot], embed),
                (side.state.previous_patch[slot], patch),
            ]
            largest = max(largest, *(float((x - y).abs().max()) for x, y in pairs))
    print(f"largest difference {largest:.2e}")
    assert largest < 1e-5


@pytest.mark.parametrize("name", ["everything", "attention", "times"])
def test_each_adapter_is_heard_and_alone_equals_in_the_batch(name: str, setting: Setting) -> None:
    setting.fill(everything=1, attention=2, times=3)
    slot = list(setting.pairs).index(name) + 1
    hidden = torch.randn(1, 2 * setting.config.lm.hidden_size).expand(4, -1)
    patches = []
    for adapters in ([slot], [NO_ADAPTER], [slot, NO_ADAPTER, 1, 2]):
        side = setting.new_side()
        names = [str(i) for i in range(len(adapters))]
        for i, request_id in enumerate(names):
            side.add(request_id, i, StepParams(5, 2.0, 4, 1.0, 8))
        run(side, names, adapters, hidden[: len(names)])
        patches.append(side.state.previous_patch[: len(names)].clone())
    (alone,), (base,), batch = patches
    assert (batch[0] - alone).abs().max() < 1e-5
    assert (batch[1] - base).abs().max() < 1e-5
    assert (alone - base).abs().max() > 1e-3


def test_padding_takes_no_adapter_and_is_not_seen(setting: Setting) -> None:
    setting.fill(everything=1, attention=2)
    side = setting.new_side()
    for slot in range(4):
        side.add(str(slot), slot, StepParams(slot, 2.0, 4, 1.0, 8))
    hidden = torch.randn(4, 2 * setting.config.lm.hidden_size)
    run(side, ["0", "1", "2", "3"], [1, 2, 1, 2], hidden)
    assert side.adapters.tolist() == [1, 2, 1, 2, 0, 0]
    side.state.previous_patch[side.state.scratch] = float("nan")  # as garbage as it gets
    before = side.state.previous_patch.clone()
    for call in side._patch_calls.values():
        call.buckets = (4, N_SLOTS)
    side._sample_call.buckets = (4, N_SLOTS)
    waves = run(side, ["0", "3"], [2, 1], hidden[:2])
    assert side.adapters.tolist() == [2, 1, 0, 0, 0, 0]
    assert all(wave.isfinite().all() for wave in waves)
    assert torch.equal(side.state.previous_patch[[1, 2]], before[[1, 2]])
    assert side.state.previous_patch[[0, 3]].isfinite().all()


def test_the_step_depends_on_nothing_that_the_host_knows(setting: Setting) -> None:
    """A captured graph is right for adapters that come later: no `taken`, no host sync."""
    side = setting.new_side()
    side.add("a", 0, StepParams(0, 2.0, 4, 1.0, 8))
    setting.fill(everything=1)
    side.adapters[:2] = 1
    side.scalars.normal_()
    plan = FlowPlan(setting.fast.feat_decoder.estimator, 3, CPU, mean_mode=False)

    def patches() -> Tensor:
        side.state.previous_patch.zero_()
        side._make_patches(plan, 2)
        return side.patches[:2].clone()

    expected = patches()
    for layer in setting.fast_adapters.layers.values():
        layer.taken.clear()
    assert torch.equal(patches(), expected)
    side.adapters.zero_()
    assert not torch.allclose(patches(), expected, atol=1e-3)
    with FakeTensorMode(allow_non_fake_inputs=True):
        side._make_patches(plan, 4)
    for slot in range(1, N_ADAPTERS + 1):  # what `taken` no longer knows
        for layer in setting.fast_adapters.layers.values():
            layer.taken.add(slot)
    setting.fill()
    assert all(not layer.stack_a.any() for layer in setting.fast_adapters.layers.values())


def test_stacks_stay_where_they_are(setting: Setting) -> None:
    """Graphs hold their addresses; adapters are written in place."""
    stack = setting.fast.feat_decoder.estimator.decoder.layers[0].low_rank["qkv"].stack_a
    setting.fill(attention=2)
    path = f"{DIT_PREFIX}decoder.layers.0.self_attn.k_proj"
    assert torch.equal(stack[1, 2, :2], setting.pairs["attention"][path][0])
    address = stack.data_ptr()
    setting.fill(everything=2)
    assert stack.data_ptr() == address
    assert torch.equal(stack[1, 2], setting.pairs["everything"][path][0])
