"""The bidirectional transformer and the networks built on it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from voxnative.config import VoxConfig
from voxnative.nn.blocks import RMSNorm, TransformerStack
from voxnative.nn.heads import ScalarQuantizer
from voxnative.nn.local_dit import LocalDiT
from voxnative.nn.local_encoder import LocalEncoder


def randomised(module: nn.Module) -> nn.Module:
    """Every parameter random, also those that start as ones or zeros."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    return module.requires_grad_(False)


def test_rms_norm_of_low_precision_input_is_computed_in_fp32() -> None:
    norm = RMSNorm(512, 1e-5).to(torch.bfloat16).requires_grad_(False)
    x = (300 * torch.randn(4, 512)).to(torch.bfloat16)
    normed = norm(x)
    assert normed.dtype == torch.bfloat16
    assert torch.allclose(normed.float().square().mean(-1), torch.ones(4), atol=0.02)


def test_without_positions_tokens_may_be_permuted(tiny_config: VoxConfig) -> None:
    x = torch.randn(2, 6, tiny_config.dit.hidden_size)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    for no_rope, permutes in ((True, True), (False, False)):
        cfg = dataclasses.replace(tiny_config.dit, no_rope=no_rope, num_hidden_layers=1)
        stack = randomised(TransformerStack(cfg, n_positions=6))
        close = torch.allclose(stack(x[:, order]), stack(x)[:, order], atol=1e-5)
        assert close is permutes


def test_every_position_sees_every_other(tiny_config: VoxConfig) -> None:
    stack = randomised(TransformerStack(tiny_config.encoder, n_positions=5))
    x = torch.randn(1, 5, tiny_config.encoder.hidden_size)
    nudged = x.clone()
    nudged[:, -1] += 1.0
    moved = (stack(nudged) - stack(x)).abs().amax(-1)
    assert (moved > 1e-4).all()


def test_mup_scales_the_branches(tiny_config: VoxConfig) -> None:
    x = torch.randn(1, 5, tiny_config.dit.hidden_size)
    plain = randomised(TransformerStack(tiny_config.dit, n_positions=5))
    mup_config = dataclasses.replace(tiny_config.dit, use_mup=True, scale_depth=0.0)
    mup = randomised(TransformerStack(mup_config, n_positions=5))
    assert torch.allclose(mup(x), mup.norm(x))  # branches times 0: the input alone is left
    assert not torch.allclose(plain(x), plain.norm(x), atol=1e-2)


def test_heads_wider_than_the_hidden_size(tiny_config: VoxConfig) -> None:
    """`kv_channels` decides, not hidden_size / heads."""
    encoder = tiny_config.encoder
    cfg = dataclasses.replace(encoder, num_attention_heads=8)  # 8 * 64 = 512 over 256
    stack = randomised(TransformerStack(cfg, n_positions=5))
    assert stack.layers[0].self_attn.q_proj.weight.shape == (512, 256)
    assert stack(torch.randn(1, 5, 256)).shape == (1, 5, 256)


def test_rows_are_independent(tiny_config: VoxConfig) -> None:
    P, D = tiny_config.patch_size, tiny_config.feat_dim
    encoder = randomised(LocalEncoder(tiny_config.encoder, D, P))
    patches = torch.randn(5, P, D)
    together = encoder(patches)
    assert together.shape == (5, tiny_config.encoder.hidden_size)
    alone = torch.cat([encoder(patch.unsqueeze(0)) for patch in patches])
    assert torch.allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("changed", ["x", "mu", "t", "dt", "cond"])
def test_velocity_depends_on_each_input(tiny_config: VoxConfig, changed: str) -> None:
    P, D = tiny_config.patch_size, tiny_config.feat_dim
    dit = randomised(LocalDiT(tiny_config.dit, D, P, 2))
    inputs = {
        "x": torch.randn(2, P, D),
        "mu": torch.randn(2, tiny_config.mu_size),
        "t": torch.tensor([0.9, 0.4]),
        "dt": torch.tensor([0.0, 0.1]),
        "cond": torch.randn(2, P, D),
    }
    before = dit(**inputs)
    inputs[changed] = inputs[changed].clone()
    inputs[changed][1] += 0.05
    difference = (dit(**inputs) - before).abs().amax((1, 2))
    assert difference[0] < 1e-6  # the other row
    assert difference[1] > 1e-5


def test_networks_run_in_low_precision_on_fp32_inputs(tiny_config: VoxConfig) -> None:
    """The solver's state stays in fp32; the network casts at its border."""
    P, D = tiny_config.patch_size, tiny_config.feat_dim
    exact = randomised(LocalDiT(tiny_config.dit, D, P, 2))
    x, cond = torch.randn(2, 2, P, D)
    mu, t = torch.randn(2, tiny_config.mu_size), torch.tensor([0.9, 0.4])
    expected = exact(x, mu, t, torch.zeros(2), cond)
    rounded = exact.to(torch.bfloat16)(x, mu, t, torch.zeros(2), cond)
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - expected).abs().mean() < 0.1 * expected.abs().mean()


def test_quantiser_has_2_scale_plus_1_levels() -> None:
    quantiser = ScalarQuantizer(1, 1, scale=9).requires_grad_(False)
    nn.init.ones_(quantiser.in_proj.weight)
    nn.init.zeros_(quantiser.in_proj.bias)
    nn.init.ones_(quantiser.out_proj.weight)
    nn.init.zeros_(quantiser.out_proj.bias)
    levels = quantiser(torch.linspace(-6, 6, 2001).unsqueeze(1)).unique()
    assert torch.allclose(levels, torch.arange(-9, 10) / 9)
