"""Fused local networks against the plain ones, also through the Triton kernels."""

from __future__ import annotations

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
from voxnative.nn.fused import FusedStack, fuse_local_networks
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


def test_eight_bit_weights_are_close(stack: TransformerStack) -> None:
    matrix, x = torch.randn(48, 96), torch.randn(7, 96)
    error = largest(quantize_rows(matrix).product(x), x @ matrix.t())
    assert 1e-4 < error < 5e-2
    tokens = torch.randn(2, 11, stack.norm.weight.shape[0])
    fused = FusedStack(stack, kernels=False, fp8=True)
    assert 1e-4 < largest(fused(tokens), stack(tokens)) < 0.1
    assert fused.layers[0].qkv is None


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
    assert "9 passed" in done.stdout
