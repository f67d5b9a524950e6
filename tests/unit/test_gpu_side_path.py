"""The side path on a CUDA device: captured graphs, no host sync in a step, padding, batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import voxnative
from voxnative.checkpoint_shapes import iter_tensors
from voxnative.config import VoxConfig
from voxnative.live_request import LiveRequest, StepSamples
from voxnative.nn.blocks import TransformerStack
from voxnative.nn.fused import fuse_local_networks
from voxnative.nn.speech_nets import SpeechNets
from voxnative.nn.vae_stream import StreamDecoder
from voxnative.request_state import StepParams
from voxnative.side_path import SidePath

pytestmark = [pytest.mark.full_model, pytest.mark.hardware_test(res="cuda", num_cards=1)]

TINY = Path(voxnative.__file__).parent / "checkpoints" / "tiny"
N_SLOTS = 80
N_TIMESTEPS = 6


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Inside, whatever makes the host wait for the device raises RuntimeError."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="module")
def config() -> VoxConfig:
    return VoxConfig.from_dir(TINY)


@pytest.fixture(scope="module", params=[True, False], ids=["kernels", "plain"])
def side(request: pytest.FixtureRequest, config: VoxConfig) -> SidePath:
    """The shipped checkpoint's side path in bf16, captured."""
    nets = SpeechNets(config)
    given = {name: tensor for name, tensor, _ in iter_tensors(TINY)}
    wanted = nets.state_dict()
    nets.load_state_dict({name: given[name] for name in wanted})
    device = torch.device("cuda")
    tables = [stack.cos.to(device) for stack in _stacks(nets)]
    nets = nets.eval().to(device, torch.bfloat16)
    nets.audio_vae.float()
    for stack, cos in zip(_stacks(nets), tables, strict=True):
        stack.cos = cos
        stack.sin = stack.sin.float()
    fuse_local_networks(nets, kernels=request.param)
    decoder = StreamDecoder(nets.audio_vae, "tf32", kernels=request.param)
    side = SidePath(nets, decoder, config, N_SLOTS, torch.bfloat16, device, (N_TIMESTEPS,))
    with torch.inference_mode():
        side.capture(lambda name, bucket: None)
    assert all(call.graphs for call in [*side._patch_calls.values(), side._sample_call])
    return side


def _stacks(nets: SpeechNets) -> tuple[TransformerStack, TransformerStack]:
    return nets.feat_encoder.encoder, nets.feat_decoder.estimator.decoder


def admit(side: SidePath, n: int, first: int = 0) -> None:
    """`n` requests of equal parameters and of seeds of their own, in slots of their number."""
    for request_id in list(side.live):
        side.remove(request_id)
    for i in range(first, first + n):
        side.add(str(i), i - first, StepParams(i, 2.0, N_TIMESTEPS, 1.0, 16))


def run(side: SidePath, hidden: Tensor) -> list[Tensor]:
    """One step of all admitted requests; their samples."""
    rows = list(range(len(hidden)))
    requests = list(side.live.values())
    return [wave for part in step(side, rows, requests, hidden) for wave in side.deliver(part)]


def step(
    side: SidePath, rows: list[int], requests: list[LiveRequest], hidden: Tensor
) -> list[StepSamples]:
    with torch.inference_mode():
        return side.step(rows, requests, np.array(rows, np.int64), hidden)


def states(config: VoxConfig, n: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(n, 2 * config.lm.hidden_size, device="cuda", dtype=torch.bfloat16)


def test_a_step_makes_the_host_wait_for_nothing(side: SidePath, config: VoxConfig) -> None:
    admit(side, 7)
    hidden = states(config, 7)
    run(side, hidden)  # pinned memory is made
    requests = list(side.live.values())
    with no_host_sync():
        parts = step(side, list(range(7)), requests, hidden)
        side.park("3")
        side.add("3", 40, requests[3].params)
    for part in parts:
        assert all(wave.isfinite().all() for wave in side.deliver(part))


def test_the_check_of_syncs_notices_one() -> None:
    value = torch.ones(1, device="cuda")
    with no_host_sync(), pytest.raises(RuntimeError, match="synchroniz"):
        value.item()


@pytest.mark.parametrize("n", [1, 3, 9, 33, 65])
def test_padded_rows_write_nowhere(n: int, side: SidePath, config: VoxConfig) -> None:
    """Slots that are not in the batch keep every bit, whatever the bucket."""
    admit(side, n)
    torch.cuda.synchronize()
    tensors = side.state._tensors()
    for tensor in tensors:
        tensor[n : side.state.scratch].normal_()
        tensor[side.state.scratch] = float("nan")  # as garbage as it gets
    before = [tensor.clone() for tensor in tensors]
    waves = run(side, states(config, n))
    assert len(waves) == n
    assert all(wave.isfinite().all() for wave in waves)
    torch.cuda.synchronize()
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor[n : side.state.scratch], old[n : side.state.scratch])
        assert not torch.equal(tensor[:n], old[:n])
        tensor.zero_()


@pytest.mark.parametrize("n", [5, 24, 80])
def test_alone_and_in_a_batch(n: int, side: SidePath, config: VoxConfig) -> None:
    """Two steps of a request alone, against the same among others; bf16 reduces in other orders."""
    hidden = states(config, n)
    admit(side, n)
    together = [torch.stack(run(side, hidden)) for _ in range(2)]
    latents = side.state.previous_patch[:n].clone()
    for i in {0, n // 2, n - 1}:
        admit(side, 1, first=i)
        alone = [run(side, hidden[i : i + 1])[0] for _ in range(2)]
        patch = side.state.previous_patch[0].flatten()
        cosine = torch.nn.functional.cosine_similarity(patch, latents[i].flatten(), dim=0)
        assert cosine > 0.99  # rows that were mixed up: about 0
        for one, many in zip(alone, together, strict=True):
            assert (one - many[i]).norm() < 0.3 * one.norm()


def test_graphs_make_what_eager_calls_make(side: SidePath, config: VoxConfig) -> None:
    hidden = states(config, 3)
    admit(side, 3)
    captured = torch.stack(run(side, hidden))
    calls = [*side._patch_calls.values(), side._sample_call]
    kept = [call.graphs for call in calls]
    try:
        for call in calls:
            call.graphs = {}
        admit(side, 3)
        eager = torch.stack(run(side, hidden))
    finally:
        for call, graphs in zip(calls, kept, strict=True):
            call.graphs = graphs
    assert (captured - eager).norm() < 0.02 * eager.norm()
