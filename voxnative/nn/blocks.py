"""The MiniCPM4 transformer as used over one patch: bidirectional, no cache.

Source: voxcpm/modules/minicpm4/model.py `MiniCPMModel` with `is_causal=False`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxnative.config_lm import LMConfig
from voxnative.nn.rope import apply_rope, rope_tables


class RMSNorm(nn.Module):
    """Root-mean-square norm with the statistics in fp32.

    Source: `MiniCPMRMSNorm`.
    """

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        variance = x.float().pow(2).mean(dim=-1, keepdim=True)
        return (x * torch.rsqrt(variance + self.eps)).to(x.dtype) * self.weight


class SelfAttention(nn.Module):
    """Bidirectional grouped-query attention over a short sequence.

    Source: `MiniCPMAttention`.
    """

    def __init__(self, cfg: LMConfig) -> None:
        super().__init__()
        self.head_dim = cfg.head_dim
        q_size = cfg.num_attention_heads * cfg.head_dim
        kv_size = cfg.num_key_value_heads * cfg.head_dim
        self.q_proj = nn.Linear(cfg.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(cfg.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(cfg.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, cfg.hidden_size, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        """Mix [B, T, H]; `rope` holds cos and sin [T, head_dim], None without positions."""
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, -1, self.head_dim)
        k = self.k_proj(x).view(B, T, -1, self.head_dim)
        v = self.v_proj(x).view(B, T, -1, self.head_dim)
        if rope is not None:
            q, k = apply_rope(q, *rope), apply_rope(k, *rope)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), enable_gqa=True
        )  # [B, heads, T, head_dim]
        return self.o_proj(mixed.transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    """SiLU-gated feed-forward network.

    Source: `MiniCPMMLP`.
    """

    def __init__(self, cfg: LMConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.up_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.down_proj = nn.Linear(cfg.intermediate_size, cfg.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class TransformerLayer(nn.Module):
    """Pre-norm attention and MLP; each branch scaled by `branch_scale` (1 without muP).

    Source: `MiniCPMDecoderLayer`.
    """

    def __init__(self, cfg: LMConfig) -> None:
        super().__init__()
        self.self_attn = SelfAttention(cfg)
        self.mlp = MLP(cfg)
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.branch_scale = cfg.branch_scale

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        """[B, T, H] -> [B, T, H]."""
        attended = self.self_attn(self.input_layernorm(x), rope)
        x = torch.add(x, attended, alpha=self.branch_scale)
        return torch.add(x, self.mlp(self.post_attention_layernorm(x)), alpha=self.branch_scale)


class TransformerStack(nn.Module):
    """Layers and final norm over at most `n_positions` positions.

    Source: `MiniCPMModel` without an embedding table.
    """

    def __init__(self, cfg: LMConfig, n_positions: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(cfg) for _ in range(cfg.num_hidden_layers))
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        cos, sin = (None, None) if cfg.no_rope else rope_tables(cfg, n_positions)
        self.register_buffer("cos", cos, persistent=False)  # fp32 [n_positions, head_dim]
        self.register_buffer("sin", sin, persistent=False)
        self.cos: Tensor | None
        self.sin: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, H] -> [B, T, H], every position seeing every other."""
        T = x.shape[1]
        rope = None if self.cos is None or self.sin is None else (self.cos[:T], self.sin[:T])
        for layer in self.layers:
            x = layer(x, rope)
        return self.norm(x)

    def last(self, x: Tensor, n_last: int) -> Tensor:
        """As `forward`, of the last positions alone [B, n_last, H]."""
        return self(x)[:, -n_last:]
