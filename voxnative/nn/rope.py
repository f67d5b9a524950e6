"""Rotary position embedding with LongRoPE factors.

Source: voxcpm/modules/minicpm4/model.py `MiniCPMLongRoPE`, `apply_rotary_pos_emb`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from voxnative.config_lm import LMConfig


def rope_tables(
    cfg: LMConfig, n_positions: int, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the first `n_positions` positions.

    The long factors apply where the model's maximum exceeds the length it was first trained for;
    the choice belongs to the checkpoint, not to the length of a request.

    Returns:
        cos, sin: fp32 [n_positions, head_dim].
    """
    original = cfg.rope_original_max_position
    stretched = cfg.max_position_embeddings > original
    factors = torch.tensor(
        cfg.rope_long_factor if stretched else cfg.rope_short_factor,
        dtype=torch.float32,
        device=device,
    )
    exponents = torch.arange(0, cfg.head_dim, 2, dtype=torch.float32, device=device) / cfg.head_dim
    inv_freq = 1.0 / cfg.rope_theta**exponents
    positions = torch.arange(n_positions, dtype=torch.float32, device=device)
    angles = torch.outer(positions, 1.0 / factors) * inv_freq  # [n, head_dim / 2]
    angles = torch.cat((angles, angles), dim=-1)
    scale = rope_scale(cfg)
    return angles.cos() * scale, angles.sin() * scale


def rope_scale(cfg: LMConfig) -> float:
    """LongRoPE's attention factor, 1 where the maximum equals the original length."""
    original = cfg.rope_original_max_position
    stretch = cfg.max_position_embeddings / original
    return math.sqrt(1 + math.log(stretch) / math.log(original))


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys; computed in fp32, returned in the dtype of `x`.

    Args:
        x: [..., T, heads, head_dim].
        cos, sin: [T, head_dim], the rows of `rope_tables` at the T positions.
    """
    first, second = x.float().chunk(2, dim=-1)
    rotated = torch.cat((-second, first), dim=-1)
    return (x.float() * cos.unsqueeze(-2) + rotated * sin.unsqueeze(-2)).to(x.dtype)
