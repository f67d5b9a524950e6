"""The side path's networks with batch-invariant kernels, at the published sizes, on a CUDA device.

`test_gpu_batch_invariance.py` runs this file in a process of its own: vLLM's settings are the
process's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.perf.full_size import published_config
from tests.perf.parts import N_TIMESTEPS, random_nets
from voxnative.config import VoxConfig
from voxnative.engine import batch_invariance
from voxnative.lora_file import DIT_PREFIX, PROJECTIONS
from voxnative.nn.flow_plan import FlowPlan, solve_planned
from voxnative.nn.fused import fuse_local_networks
from voxnative.nn.heads import ScalarQuantizer, StopHead
from voxnative.nn.lora import NetAdapters
from voxnative.nn.speech_nets import SpeechNets

DEVICE = torch.device("cuda")
MOST, SIZES = 96, (1, 2, 3, 8, 17, 64)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> VoxConfig:
    batch_invariance.deny_products_a_workspace()
    from vllm.model_executor.determinism.batch_invariant import init_batch_invariance

    init_batch_invariance()
    batch_invariance.agree_on_tf32()
    path: Path = tmp_path_factory.mktemp("published") / "config.json"
    path.write_text(json.dumps(published_config()))
    return VoxConfig.from_dir(path.parent)


@pytest.fixture(scope="module")
def nets(config: VoxConfig) -> SpeechNets:
    nets = random_nets(config, torch.bfloat16, DEVICE)
    fuse_local_networks(nets, kernels=True, batch_invariant=True)
    return nets


@torch.inference_mode()
def test_patches_do_not_depend_on_the_batch(config: VoxConfig, nets: SpeechNets) -> None:
    estimator = nets.feat_decoder.estimator
    plan = FlowPlan(estimator, N_TIMESTEPS, DEVICE, mean_mode=config.dit_mean_mode)
    noise, cond = torch.randn(2, MOST, config.patch_size, config.feat_dim, device=DEVICE)
    hidden, residual = torch.randn(2, MOST, config.lm.hidden_size, device=DEVICE).bfloat16()
    cfg = torch.linspace(1, 3, MOST, device=DEVICE)

    def patches(n: int) -> Tensor:
        mu = nets.dit_condition(hidden[:n], residual[:n])
        return solve_planned(estimator, plan, noise[:n], mu=mu, cond=cond[:n], cfg=cfg[:n])

    among = patches(MOST)
    assert {n: torch.equal(patches(n), among[:n]) for n in SIZES} == dict.fromkeys(SIZES, True)
    embeds = nets.embed_patches(among.bfloat16())
    equal = {n: torch.equal(nets.embed_patches(among[:n].bfloat16()), embeds[:n]) for n in SIZES}
    assert equal == dict.fromkeys(SIZES, True)


@torch.inference_mode()
def test_patches_with_adapters_do_not_depend_on_the_batch(config: VoxConfig) -> None:
    """Rows take the slots in turn, the empty one among them."""
    nets, n_adapters, rank = random_nets(config, torch.bfloat16, DEVICE), 8, 8
    adapters = NetAdapters(
        nets,
        nets.adapter_rows,
        lambda path: path.startswith(DIT_PREFIX) or path in PROJECTIONS,
        n_adapters,
        rank,
    )
    for slot in range(1, n_adapters + 1):
        pairs = {
            path: (torch.randn(rank, low.stack_a.shape[2]), torch.randn(low.stack_b.shape[2], rank))
            for path, low in adapters.layers.items()
        }
        adapters.write(slot, {path: (a / 60, b / 20) for path, (a, b) in pairs.items()})
    fuse_local_networks(nets, kernels=True, batch_invariant=True)
    estimator = nets.feat_decoder.estimator
    plan = FlowPlan(estimator, N_TIMESTEPS, DEVICE, mean_mode=config.dit_mean_mode)
    noise, cond = torch.randn(2, MOST, config.patch_size, config.feat_dim, device=DEVICE)
    hidden, residual = torch.randn(2, MOST, config.lm.hidden_size, device=DEVICE).bfloat16()
    slots = torch.arange(MOST, device=DEVICE) % (n_adapters + 1)
    cfg = torch.full((MOST,), 2.0, device=DEVICE)

    def patches(n: int, slots: Tensor) -> Tensor:
        with nets.adapter_rows.using(slots[:n], masked=True):
            mu = nets.dit_condition(hidden[:n], residual[:n])
            return solve_planned(estimator, plan, noise[:n], mu=mu, cond=cond[:n], cfg=cfg[:n])

    among = patches(MOST, slots)
    equal = {n: torch.equal(patches(n, slots), among[:n]) for n in SIZES}
    assert equal == dict.fromkeys(SIZES, True)
    without = patches(MOST, 0 * slots)
    differ = (without != among).flatten(1).any(dim=1)
    assert differ.tolist() == (slots > 0).tolist()


@torch.inference_mode()
def test_heads_do_not_depend_on_the_batch(config: VoxConfig) -> None:
    torch.manual_seed(1)
    size = config.lm.hidden_size
    with DEVICE:
        quantizer = ScalarQuantizer(size, config.fsq_latent_dim, config.fsq_scale).bfloat16()
        stop = StopHead(size).bfloat16()
        hidden = torch.randn(MOST, size).bfloat16()
    for head in (quantizer, stop):
        among = head(hidden)
        equal = {n: torch.equal(head(hidden[:n]), among[:n]) for n in SIZES}
        assert equal == dict.fromkeys(SIZES, True), type(head)
