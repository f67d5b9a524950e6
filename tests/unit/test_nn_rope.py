"""RoPE tables and rotation: the properties that make attention relative."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from voxnative.config import LMConfig, VoxConfig
from voxnative.nn.rope import apply_rope, rope_tables


@pytest.fixture
def lm(tiny_config: VoxConfig) -> LMConfig:
    factors = tuple(1.0 + 0.1 * i for i in range(tiny_config.lm.head_dim // 2))
    stretched = tuple(2.0 * factor for factor in factors)
    return dataclasses.replace(
        tiny_config.lm, rope_short_factor=factors, rope_long_factor=stretched
    )


def test_tables(lm: LMConfig) -> None:
    cos, sin = rope_tables(lm, 7)
    assert cos.shape == sin.shape == (7, lm.head_dim)
    assert cos.dtype == torch.float32
    assert torch.allclose(cos.square() + sin.square(), torch.ones_like(cos))
    pair = 3  # channels 3 and 3 + head_dim / 2 turn together
    angle = 5 / lm.rope_short_factor[pair] / lm.rope_theta ** (2 * pair / lm.head_dim)
    assert cos[5, pair].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert sin[5, pair + lm.head_dim // 2].item() == pytest.approx(math.sin(angle), abs=1e-6)


def test_long_factors_and_scale_where_the_context_was_stretched(lm: LMConfig) -> None:
    original = lm.max_position_embeddings // 4
    stretched = dataclasses.replace(lm, rope_original_max_position=original)
    cos, sin = rope_tables(stretched, 9)
    scale = math.sqrt(1 + math.log(4) / math.log(original))
    assert torch.allclose((cos.square() + sin.square()).sqrt(), torch.full_like(cos, scale))
    # The long factors here are twice the short ones: position 8 turns as position 4 did.
    plain_cos, _ = rope_tables(lm, 9)
    assert torch.allclose(cos[8], plain_cos[4] * scale, atol=1e-6)


def test_scores_depend_on_the_distance_alone(lm: LMConfig) -> None:
    cos, sin = rope_tables(lm, 32)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, lm.head_dim, generator=generator).expand(2, 32, lm.head_dim)
    q = apply_rope(q.unsqueeze(1), cos, sin).squeeze(1)  # [32, head_dim]
    k = apply_rope(k.unsqueeze(1), cos, sin).squeeze(1)
    scores = q @ k.T
    diagonal = scores.diagonal(3)
    assert torch.allclose(diagonal, diagonal[0].expand(29), atol=1e-4)
    assert (scores.diagonal(3)[0] - scores.diagonal(9)[0]).abs() > 1e-3


def test_rotation_keeps_norm_and_dtype(lm: LMConfig) -> None:
    cos, sin = rope_tables(lm, 5)
    x = torch.randn(2, 5, 3, lm.head_dim).to(torch.bfloat16)
    rotated = apply_rope(x, cos, sin)
    assert rotated.dtype == torch.bfloat16
    assert torch.equal(rotated[:, 0], x[:, 0])
    assert torch.allclose(rotated.float().norm(dim=-1), x.float().norm(dim=-1), rtol=1e-2)
