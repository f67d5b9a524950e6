"""One decode step over the container: rows are independent, state moves, outputs are fresh."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from tests.checkpoints import write_checkpoint
from voxnative.config import VoxConfig
from voxnative.decode_step import decode_step, prime_continuation
from voxnative.nn.lora import NetAdapters
from voxnative.nn.speech_nets import SpeechNets
from voxnative.request_state import RequestStates, StepParams


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> VoxConfig:
    directory: Path = write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    return VoxConfig.from_dir(directory)


@pytest.fixture(scope="module")
def nets(config: VoxConfig) -> SpeechNets:
    torch.manual_seed(0)
    return SpeechNets(config).eval().requires_grad_(False)


def new_states(config: VoxConfig, nets: SpeechNets, n_slots: int = 4) -> RequestStates:
    return RequestStates(config, nets.audio_vae, n_slots, 8, torch.float32, torch.device("cpu"))


def hidden_rows(config: VoxConfig, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, residual = torch.randn(2, n, config.lm.hidden_size, generator=generator)
    return hidden, residual


@pytest.mark.parametrize("timesteps", [[10, 10, 10], [10, 4, 7]], ids=["one group", "three groups"])
def test_a_row_is_the_same_alone_and_in_a_batch(
    timesteps: list[int], config: VoxConfig, nets: SpeechNets
) -> None:
    params = [StepParams(i, 1.0 + i, n, 1.0 - 0.2 * i, 8) for i, n in enumerate(timesteps)]
    together = new_states(config, nets)
    slots = [together.add(str(i), p) for i, p in enumerate(params)]
    alone = [new_states(config, nets) for _ in params]
    for states, p in zip(alone, params, strict=True):
        states.add("x", p)
    for step in range(3):
        hidden, residual = hidden_rows(config, len(params), step)
        waves = decode_step(nets, together, slots, hidden, residual)
        for i, states in enumerate(alone):
            wave = decode_step(
                nets, states, [states.slot_of["x"]], hidden[i : i + 1], residual[i : i + 1]
            )
            assert (waves[i] - wave[0]).abs().max() < 1e-5
            patch = states.previous_patch[states.slot_of["x"]]
            assert (together.previous_patch[slots[i]] - patch).abs().max() < 1e-5


def test_each_row_with_an_adapter_equals_networks_with_merged_weights(config: VoxConfig) -> None:
    """Two adapters and none, in two groups of timesteps, over steps that feed each other."""
    torch.manual_seed(0)
    nets = SpeechNets(config).eval().requires_grad_(False)
    merged = [copy.deepcopy(nets) for _ in range(3)]
    adapters = NetAdapters(nets, nets.adapter_rows, lambda path: "audio_vae" not in path, 2, 4)
    generator = torch.Generator().manual_seed(1)
    for slot in (1, 2):
        pairs = {}
        for path, layer in adapters.layers.items():
            n_out, n_in = layer.stack_b.shape[2], layer.stack_a.shape[2]
            a = torch.randn(4, n_in, generator=generator) / n_in**0.5
            pairs[path] = a, 0.2 * torch.randn(n_out, 4, generator=generator)
            merged[slot].get_submodule(path).weight += pairs[path][1] @ a
        adapters.write(slot, pairs)

    wanted = [2, 0, 1, 2]  # slot of each row's adapter
    params = [StepParams(i, 2.0, n, 1.0, 8) for i, n in enumerate((4, 6, 6, 6))]
    together = new_states(config, nets)
    rows = [together.add(str(i), p) for i, p in enumerate(params)]
    for row, adapter in zip(rows, wanted, strict=True):
        together.adapter[row] = adapter
    alone = [new_states(config, net) for net in merged]
    for i, adapter in enumerate(wanted):
        alone[adapter].add(str(i), params[i])
    for step in range(3):
        hidden, residual = hidden_rows(config, len(params), step)
        waves = decode_step(nets, together, rows, hidden, residual)
        for i, adapter in enumerate(wanted):
            states = alone[adapter]
            slot = states.slot_of[str(i)]
            one = slice(i, i + 1)
            wave = decode_step(merged[adapter], states, [slot], hidden[one], residual[one])
            assert (waves[i] - wave[0]).abs().max() < 1e-5
            embed = states.history[slot][-1]
            assert (together.history[rows[i]][-1] - embed).abs().max() < 1e-4
    assert (together.history[rows[0]][-1] - together.history[rows[3]][-1]).abs().max() > 0.01


def test_other_slots_are_not_touched(config: VoxConfig, nets: SpeechNets) -> None:
    states = new_states(config, nets)
    first = states.add("a", StepParams(0, 2.0, 4, 1.0, 8))
    other = states.add("b", StepParams(1, 2.0, 4, 1.0, 8))
    before = [t[other].clone() for t in (states.previous_patch, states.step, *states.vae_tails)]
    decode_step(nets, states, [first], *hidden_rows(config, 1, 0))
    after = [t[other] for t in (states.previous_patch, states.step, *states.vae_tails)]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert states.step[first] == 1
    assert states.history[other] == []


def test_each_step_has_storage_of_its_own(config: VoxConfig, nets: SpeechNets) -> None:
    """Samples are sent by reference: a later step must not write over them."""
    states = new_states(config, nets)
    slot = states.add("a", StepParams(0, 2.0, 4, 1.0, 8))
    first = decode_step(nets, states, [slot], *hidden_rows(config, 1, 0))
    kept = first.clone()
    second = decode_step(nets, states, [slot], *hidden_rows(config, 1, 1))
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, kept)
    assert first.shape == (1, config.patch_samples_out)
    assert first.dtype == torch.float32


def test_a_surplus_step_beyond_the_noise_is_harmless(config: VoxConfig, nets: SpeechNets) -> None:
    states = new_states(config, nets)
    slot = states.add("a", StepParams(0, 2.0, 4, 1.0, 8))
    states.step[slot] = states.max_steps
    wave = decode_step(nets, states, [slot], *hidden_rows(config, 1, 0))
    assert torch.isfinite(wave).all()


def test_priming_takes_the_prompts_end(config: VoxConfig, nets: SpeechNets) -> None:
    states = new_states(config, nets)
    slot, other = (states.add(name, StepParams(0, 2.0, 4, 1.0, 8)) for name in "ab")
    context = torch.randn(3, config.patch_size, config.feat_dim)
    prime_continuation(nets, states, slot, context)
    assert torch.equal(states.previous_patch[slot], context[-1])
    assert any(torch.count_nonzero(tail[slot]) for tail in states.vae_tails)
    assert not any(torch.count_nonzero(tail[other]) for tail in states.vae_tails)
    assert states.step[slot] == 0
