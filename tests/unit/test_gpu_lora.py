"""Adapters on a CUDA device: captured graphs, no host sync, vLLM's kernel metadata."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from vllm.config.lora import LoRAConfig
from vllm.lora.layers import LoRAMapping
from vllm.lora.punica_wrapper.punica_gpu import PunicaWrapperGPU

import voxnative
from tests.perf.parts import random_nets
from tests.unit.test_gpu_side_path import no_host_sync
from voxnative.config import VoxConfig
from voxnative.decode_step import decode_step
from voxnative.engine.lora_manager import ready_to_copy
from voxnative.engine.punica_gpu import tell_mapping, use_host_metadata
from voxnative.lora_file import DIT_PREFIX, PROJECTIONS
from voxnative.nn.fused import fuse_local_networks
from voxnative.nn.lora import NetAdapters
from voxnative.nn.speech_nets import SpeechNets
from voxnative.nn.vae_stream import StreamDecoder
from voxnative.request_state import RequestStates, StepParams
from voxnative.side_path import SidePath

pytestmark = [pytest.mark.full_model, pytest.mark.hardware_test(res="cuda", num_cards=1)]

DEVICE = torch.device("cuda")
TINY = Path(voxnative.__file__).parent / "checkpoints" / "tiny"
N_SLOTS, N_TIMESTEPS, N_ADAPTERS, RANK = 6, 6, 3, 8
Pairs = dict[str, tuple[Tensor, Tensor]]


@dataclass
class Setting:
    config: VoxConfig
    plain: SpeechNets  # as `decode_step` takes them
    plain_adapters: NetAdapters
    side: SidePath  # captured before any adapter came
    adapters: NetAdapters
    pairs: list[Pairs]


def with_adapters(nets: SpeechNets) -> NetAdapters:
    return NetAdapters(
        nets,
        nets.adapter_rows,
        lambda path: path.startswith(DIT_PREFIX) or path in PROJECTIONS,
        N_ADAPTERS,
        RANK,
    )


def random_pairs(adapters: NetAdapters, seed: int) -> Pairs:
    generator = torch.Generator().manual_seed(seed)
    pairs = {}
    for path, layer in adapters.layers.items():
        n_in, n_out = layer.stack_a.shape[2], layer.stack_b.shape[2]
        a = torch.randn(RANK, n_in, generator=generator) / n_in**0.5
        b = torch.randn(n_out, RANK, generator=generator) * 0.4 / RANK**0.5
        pairs[path] = ready_to_copy(a.bfloat16(), b.bfloat16(), DEVICE)
    return pairs


@pytest.fixture(scope="module", params=[True, False], ids=["kernels", "plain"])
def setting(request: pytest.FixtureRequest) -> Setting:
    config = VoxConfig.from_dir(TINY)
    plain = random_nets(config, torch.bfloat16, DEVICE)
    fast = copy.deepcopy(plain)
    plain_adapters, adapters = with_adapters(plain), with_adapters(fast)
    fuse_local_networks(fast, kernels=request.param)
    decoder = StreamDecoder(fast.audio_vae)
    side = SidePath(fast, decoder, config, N_SLOTS, torch.bfloat16, DEVICE, (N_TIMESTEPS,))
    with torch.inference_mode():
        side.capture(lambda name, bucket: None)
    assert all(call.graphs for call in side._patch_calls.values())
    pairs = [random_pairs(adapters, seed) for seed in range(N_ADAPTERS)]
    return Setting(config, plain, plain_adapters, side, adapters, pairs)


@torch.inference_mode()
def patches(side: SidePath, slots: list[int], hidden: Tensor) -> Tensor:
    """The first patch of a request of seed 5 for each adapter's slot, `[len(slots), P * D]`."""
    for request_id in list(side.live):
        side.remove(request_id)
    for i, slot in enumerate(slots):
        side.add(str(i), i, StepParams(5, 2.0, N_TIMESTEPS, 1.0, 8))
        side.live[str(i)].adapter = slot
    rows = list(range(len(slots)))
    for part in side.step(rows, list(side.live.values()), np.array(rows), hidden[: len(slots)]):
        side.deliver(part)
    return side.state.previous_patch[: len(slots)].flatten(1).clone()


def cosine(x: Tensor, y: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(x.float(), y.float(), dim=-1).min())


def test_graphs_serve_adapters_that_come_later(setting: Setting) -> None:
    torch.manual_seed(0)
    size = 2 * setting.config.lm.hidden_size
    hidden = torch.randn(1, size, device=DEVICE, dtype=torch.bfloat16).expand(N_SLOTS, -1)
    (before,) = patches(setting.side, [1], hidden)  # an empty slot
    with no_host_sync(), torch.inference_mode():
        for slot, pairs in enumerate(setting.pairs, 1):
            setting.adapters.write(slot, pairs)
    slots = [1, 0, 3, 2, 1]
    mixed = patches(setting.side, slots, hidden)
    alone = torch.cat([patches(setting.side, [slot], hidden) for slot in slots])
    assert cosine(mixed, alone) > 0.998
    assert cosine(mixed[1], before) > 0.998

    kept = [call.graphs for call in setting.side._patch_calls.values()]
    for call in setting.side._patch_calls.values():
        call.graphs = {}
    eager = patches(setting.side, slots, hidden)
    for call, graphs in zip(setting.side._patch_calls.values(), kept, strict=True):
        call.graphs = graphs
    assert cosine(mixed, eager) > 0.9999

    for slot, pairs in enumerate(setting.pairs, 1):
        setting.plain_adapters.write(slot, pairs)
    for row, slot in enumerate(slots):
        states = RequestStates(
            setting.config, setting.plain.audio_vae, 1, 8, torch.bfloat16, DEVICE
        )
        states.add("x", StepParams(5, 2.0, N_TIMESTEPS, 1.0, 8))
        states.adapter[0] = slot
        with torch.inference_mode():
            decode_step(setting.plain, states, [0], *hidden[:1].chunk(2, dim=-1))
        assert cosine(mixed[row], states.previous_patch[0].flatten()) > 0.99
    others = [cosine(mixed[0], mixed[row]) for row in (1, 2, 3)]
    assert max(others) < 0.95  # each adapter is heard


def test_kernel_metadata_without_a_sync() -> None:
    """Of vLLM's real wrapper, whose stock class waits for the device."""
    chance = random.Random(0)
    config = LoRAConfig(max_loras=3, max_lora_rank=8)
    stock = PunicaWrapperGPU(64, 8, DEVICE, lora_config=config)
    wrapper = PunicaWrapperGPU(64, 8, DEVICE, lora_config=config)
    use_host_metadata(wrapper)
    slot_ids = [17, None, 3]
    for n in (4, 64, 1, 33):
        ids = tuple(chance.choices([0, 3, 17], k=n))
        mapping = LoRAMapping((17, *ids[1:]), ids[:1], is_prefill=True)
        tell_mapping(wrapper, mapping, slot_ids)
        with no_host_sync():
            wrapper.update_metadata(mapping, slot_ids, 4, 100)
        stock.update_metadata(mapping, slot_ids, 4, 100)
        got = wrapper.token_mapping_meta.meta_args(n, False)
        for x, y in zip(got, stock.token_mapping_meta.meta_args(n, False), strict=True):
            assert torch.equal(x, y)
