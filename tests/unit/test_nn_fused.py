"""Fused local networks against the plain ones, also through the Triton kernels."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.checkpoints import write_checkpoint
from voxnative.config import VoxConfig
from voxnative.nn.blocks import TransformerStack
from voxnative.nn.fp8_linear import quantize_rows
from voxnative.nn.fused import FusedLayer, FusedStack, fuse_local_networks
from voxnative.nn.lora import AdapterRows, NetAdapters
from voxnative.nn.speech_nets import SpeechNets


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "muP"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VoxConfig:
    directory: Path = write_checkpoint(tmp_path_factory.mktemp("c"), use_mup=request.param)
    return VoxConfig.from_dir(directory)


@pytest.fixture(scope="module")
def stack(config: VoxConfig) -> TransformerStack:
    torch.manual_seed(0)
    stack = TransformerStack(config.dit, n_positions=11).requires_grad_(False)
    for name, parameter in stack.named_parameters():
        if name.endswith("layernorm.weight"):
            parameter.add_(0.2 * torch.randn_like(parameter))
    return stack


def largest(x: Tensor, y: Tensor) -> float:
    return float((x - y).abs().max() / y.abs().max())


def test_folded_weights_give_the_same(stack: TransformerStack) -> None:
    x = torch.randn(3, 11, stack.norm.weight.shape[0])
    assert largest(FusedStack(stack, kernels=False)(x), stack(x)) < 1e-5


def test_the_last_positions_alone(stack: TransformerStack) -> None:
    x = torch.randn(3, 11, stack.norm.weight.shape[0])
    assert largest(FusedStack(stack, kernels=False).last(x, 4), stack(x)[:, -4:]) < 1e-5


def test_eight_bit_weights_are_close(stack: TransformerStack) -> None:
    matrix, x = torch.randn(48, 96), torch.randn(7, 96)
    error = largest(quantize_rows(matrix).product(x), x @ matrix.t())
    assert 1e-4 < error < 5e-2
    tokens = torch.randn(2, 11, stack.norm.weight.shape[0])
    fused = FusedStack(stack, kernels=False, fp8=True)
    assert 1e-4 < largest(fused(tokens), stack(tokens)) < 0.1
    assert fused.layers[0].qkv is None


@pytest.mark.parametrize("fp8", [False, True], ids=["plain", "8 bits"])
def test_adapters_add_to_folded_products(fp8: bool, stack: TransformerStack) -> None:
    """Of the query, the value and the up projections only; rows in two copies of the batch."""
    stack, rows, adapted = copy.deepcopy(stack), AdapterRows(), ("q_proj", "v_proj", "up_proj")
    adapters = NetAdapters(stack, rows, lambda path: path.endswith(adapted), 2, 3)
    pairs = {
        path: (torch.randn(2, low.stack_a.shape[2]), torch.randn(low.stack_b.shape[2], 2))
        for path, low in adapters.layers.items()
    }
    adapters.write(2, pairs)
    layer = FusedLayer(stack.layers[0], fp8=fp8)
    assert list(layer.low_rank) == ["qkv", "gate_up"]
    T, slots = 3, torch.tensor([0, 2])
    x = torch.randn(2 * 2 * T, stack.norm.weight.shape[0])
    with rows.using(slots, masked=True):
        added = [layer.product(name, x, T) for name in ("qkv", "gate_up")]
    added = [y - layer.product(name, x, T) for y, name in zip(added, layer.low_rank, strict=True)]
    products = {
        path.rpartition(".")[2]: (x @ a.mT @ b.mT).view(2, 2, T, -1) * slots.view(2, 1, 1).bool()
        for path, (a, b) in pairs.items()
        if path.startswith("layers.0.")
    }
    n_kv = layer.n_kv_heads * layer.head_dim
    zeros = products["q_proj"].new_zeros(2, 2, T, n_kv)
    qkv = torch.cat((products["q_proj"], zeros, products["v_proj"]), dim=-1)
    gate_up = torch.cat((torch.zeros_like(products["up_proj"]), products["up_proj"]), dim=-1)
    for got, expected in zip(added, (qkv, gate_up), strict=True):
        assert largest(got, expected.flatten(0, 2)) < 1e-5


def test_fused_networks_embed_and_denoise_as_before(config: VoxConfig) -> None:
    torch.manual_seed(0)
    nets = SpeechNets(config).requires_grad_(False)
    patches = torch.randn(3, config.patch_size, config.feat_dim)
    mu, t = torch.randn(3, config.mu_size), torch.rand(3)
    before = nets.embed_patches(patches), nets.feat_decoder.estimator(patches, mu, t, t, patches)
    fuse_local_networks(nets, kernels=False)
    after = nets.embed_patches(patches), nets.feat_decoder.estimator(patches, mu, t, t, patches)
    for x, y in zip(after, before, strict=True):
        assert largest(x, y) < 1e-5


def test_kernels_in_tritons_interpreter(repo: Path) -> None:
    """They work on CPU tensors there; Triton asks for it before it is first imported."""
    checks = "tests/unit/interpreted_kernels.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", checks],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=repo,
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "10 passed" in done.stdout
