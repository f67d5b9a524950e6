"""Rotary position embedding of packed projections, in place and in one launch (Triton)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rotate_kernel(
    qkv_ptr, cos_ptr, sin_ptr, row_stride, N_ROTATED: tl.constexpr, N_PAD: tl.constexpr,
    HEAD: tl.constexpr,
):  # fmt: skip
    """All rotated heads of one token; pairs are (d, d + HEAD / 2)."""
    token = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = HEAD // 2
    d = tl.arange(0, half)
    head = tl.arange(0, N_PAD)
    c1 = tl.load(cos_ptr + token * HEAD + d)[None, :]
    c2 = tl.load(cos_ptr + token * HEAD + half + d)[None, :]
    s1 = tl.load(sin_ptr + token * HEAD + d)[None, :]
    s2 = tl.load(sin_ptr + token * HEAD + half + d)[None, :]
    at = token * row_stride + head[:, None] * HEAD + d[None, :]
    mask = (head < N_ROTATED)[:, None]
    first = tl.load(qkv_ptr + at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(qkv_ptr + at + half, mask=mask, other=0.0).to(tl.float32)
    dtype = qkv_ptr.dtype.element_ty
    tl.store(qkv_ptr + at, (first * c1 - second * s1).to(dtype), mask=mask)
    tl.store(qkv_ptr + at + half, (second * c2 + first * s2).to(dtype), mask=mask)


def rotate_in_place(qkv: Tensor, cos: Tensor, sin: Tensor, n_rotated: int, head_dim: int) -> None:
    """Rotate the leading heads of each row, queries and keys, as `rope.apply_rope` does.

    Args:
        qkv: [n, heads * head_dim], rows contiguous.
        cos, sin: fp32 [n, head_dim], the tables' rows at the n positions, contiguous.
        n_rotated: heads to rotate; those behind it (values) stay.
        head_dim: a power of two, as vLLM's attention asks for anyway.
    """
    _rotate_kernel[(qkv.shape[0],)](
        qkv, cos, sin, qkv.stride(0),
        N_ROTATED=n_rotated, N_PAD=triton.next_power_of_2(n_rotated), HEAD=head_dim, num_warps=4,
    )  # fmt: skip
