"""flash_attn's three functions that the peer calls, on vLLM's FlashAttention kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.vllm_flash_attn import flash_attn_varlen_func as _varlen


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    block_table: Tensor | None = None,
) -> Tensor:
    lengths: dict[str, Any] = {"cu_seqlens_k": cu_seqlens_k}
    if block_table is not None:
        lengths = {"seqused_k": (cu_seqlens_k[1:] - cu_seqlens_k[:-1]).int()}
    return _varlen(
        q, k, v, max_seqlen_q=max_seqlen_q, cu_seqlens_q=cu_seqlens_q, max_seqlen_k=max_seqlen_k,
        softmax_scale=softmax_scale, causal=causal, block_table=block_table, fa_version=3,
        **lengths,
    )  # fmt: skip


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    cache_seqlens: Tensor,
    block_table: Tensor,
    softmax_scale: float,
    causal: bool,
) -> Tensor:
    B = q.shape[0]
    starts = torch.arange(B + 1, dtype=torch.int32, device=q.device)
    out = _varlen(
        q.flatten(0, 1), k_cache, v_cache, max_seqlen_q=1, cu_seqlens_q=starts,
        max_seqlen_k=block_table.shape[1] * k_cache.shape[1], seqused_k=cache_seqlens,
        softmax_scale=softmax_scale, causal=causal, block_table=block_table, fa_version=3,
    )  # fmt: skip
    return out.unsqueeze(1)


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool
) -> Tensor:
    B, T = q.shape[:2]
    starts = torch.arange(0, (B + 1) * T, T, dtype=torch.int32, device=q.device)
    out = _varlen(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), max_seqlen_q=T, cu_seqlens_q=starts,
        max_seqlen_k=T, cu_seqlens_k=starts, softmax_scale=softmax_scale, causal=causal,
        fa_version=3,
    )  # fmt: skip
    return out.view_as(q)
