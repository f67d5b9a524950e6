"""Triton kernels of the local transformers: what stands between the products, and small products.

A sequence is one patch: 5 tokens in the encoder, 11 in the DiT. One program attends one head of
one sequence. The skinny products stream the weights once through all processors for up to
``MAX_SKINNY_ROWS`` rows, where a general matrix product leaves most of the device idle; norm,
gate and residual ride along. Each output is reduced in one fixed order, whatever else is in the
batch of the same size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """Launch shape of a skinny product.

    Attributes:
        n: output columns a program.
        k: input columns a loop iteration.
        warps: warps a program.
        stages: depth of the software pipeline.
    """

    n: int
    k: int
    warps: int = 4
    stages: int = 4


MAX_SKINNY_ROWS = 128  # above it the general product of the library is faster


@triton.jit
def _attend_kernel(
    qkv_ptr, cos_ptr, sin_ptr, out_ptr, scale,
    T: tl.constexpr, T_PAD: tl.constexpr, HEAD: tl.constexpr,
    N_HEADS: tl.constexpr, N_KV: tl.constexpr, HAS_ROPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One head of one sequence: rope, softmax over T tokens, mix."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // (N_HEADS // N_KV)
    width = (N_HEADS + 2 * N_KV) * HEAD
    half: tl.constexpr = HEAD // 2
    t = tl.arange(0, T_PAD)
    d = tl.arange(0, half)
    is_token = (t < T)[:, None]
    rows = (sequence * T + t)[:, None] * width
    dtype = out_ptr.dtype.element_ty

    q_at = rows + head * HEAD + d[None, :]
    k_at = rows + (N_HEADS + kv_head) * HEAD + d[None, :]
    q1 = tl.load(qkv_ptr + q_at, mask=is_token, other=0.0)
    q2 = tl.load(qkv_ptr + q_at + half, mask=is_token, other=0.0)
    k1 = tl.load(qkv_ptr + k_at, mask=is_token, other=0.0)
    k2 = tl.load(qkv_ptr + k_at + half, mask=is_token, other=0.0)
    if HAS_ROPE:
        at = t[:, None] * HEAD + d[None, :]
        c1 = tl.load(cos_ptr + at, mask=is_token, other=0.0)
        c2 = tl.load(cos_ptr + at + half, mask=is_token, other=0.0)
        s1 = tl.load(sin_ptr + at, mask=is_token, other=0.0)
        s2 = tl.load(sin_ptr + at + half, mask=is_token, other=0.0)
        qa, qb = q1.to(tl.float32), q2.to(tl.float32)
        ka, kb = k1.to(tl.float32), k2.to(tl.float32)
        q1 = (qa * c1 - qb * s1).to(dtype)
        q2 = (qb * c2 + qa * s2).to(dtype)
        k1 = (ka * c1 - kb * s1).to(dtype)
        k2 = (kb * c2 + ka * s2).to(dtype)
    scores = tl.dot(q1, tl.trans(k1), input_precision=PRECISION)
    scores = tl.dot(q2, tl.trans(k2), scores, input_precision=PRECISION) * scale
    scores = tl.where((t < T)[None, :], scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    weights = weights / tl.sum(weights, axis=1)[:, None]
    wide = tl.arange(0, HEAD)
    v_at = rows + (N_HEADS + N_KV + kv_head) * HEAD + wide[None, :]
    v = tl.load(qkv_ptr + v_at, mask=is_token, other=0.0)
    mixed = tl.dot(weights.to(dtype), v, input_precision=PRECISION)
    out_at = (sequence * T + t)[:, None] * (N_HEADS * HEAD) + head * HEAD + wide[None, :]
    tl.store(out_ptr + out_at, mixed.to(dtype), mask=is_token)


@triton.jit
def _norm_kernel(x_ptr, gain_ptr, out_ptr, eps, H: tl.constexpr, H_PAD: tl.constexpr):
    """RMS norm of one row."""
    row = tl.program_id(0).to(tl.int64) * H
    h = tl.arange(0, H_PAD)
    x = tl.load(x_ptr + row + h, mask=h < H, other=0.0).to(tl.float32)
    gain = tl.load(gain_ptr + h, mask=h < H, other=0.0)
    dtype = out_ptr.dtype.element_ty
    normed = (x * tl.rsqrt(tl.sum(x * x, axis=0) / H + eps)).to(dtype)
    tl.store(out_ptr + row + h, normed * gain, mask=h < H)


@triton.jit
def _gate_kernel(gate_up_ptr, out_ptr, F: tl.constexpr, BLOCK: tl.constexpr):
    """silu(gate) * up of one block of one row."""
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_up_ptr + row * 2 * F + f, mask=f < F, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * F + F + f, mask=f < F, other=0.0)
    dtype = out_ptr.dtype.element_ty
    active = (gate / (1.0 + tl.exp(-gate))).to(dtype)
    tl.store(out_ptr + row * F + f, active * up, mask=f < F)


@triton.jit(do_not_specialize=["M"])
def _skinny_kernel(
    x_ptr, gain_ptr, weight_ptr, residual_ptr, out_ptr, eps, branch_scale,
    M, N: tl.constexpr, K: tl.constexpr, M_PAD: tl.constexpr, TILE_N: tl.constexpr,
    TILE_K: tl.constexpr, HAS_NORM: tl.constexpr, IS_GATED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of columns of [norm](x) @ weight.T [gated] [+ residual], all rows at once.

    With the norm the rows' scales are only known at the end of the loop over K, and are applied
    to the accumulator: they are constant along a row.
    """
    m = tl.program_id(1) * M_PAD + tl.arange(0, M_PAD)
    n = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    in_m, in_n = m < M, n < N
    dtype = out_ptr.dtype.element_ty
    squares = tl.zeros((M_PAD,), tl.float32)
    products = tl.zeros((M_PAD, TILE_N), tl.float32)
    ups = tl.zeros((M_PAD, TILE_N), tl.float32)
    for start in range(0, K, TILE_K):
        at = start + k
        in_k = at < K
        x_mask = in_m[:, None] & in_k[None, :]
        w_mask = in_n[:, None] & in_k[None, :]
        x = tl.load(x_ptr + m[:, None] * K + at[None, :], mask=x_mask, other=0.0)
        if HAS_NORM:
            wide = x.to(tl.float32)
            squares += tl.sum(wide * wide, axis=1)
            x = (wide * tl.load(gain_ptr + at, mask=in_k, other=0.0).to(tl.float32)).to(dtype)
        w = tl.load(weight_ptr + n[:, None] * K + at[None, :], mask=w_mask, other=0.0)
        products = tl.dot(x, tl.trans(w), products, input_precision=PRECISION)
        if IS_GATED:
            up_at = (N + n)[:, None] * K + at[None, :]
            w = tl.load(weight_ptr + up_at, mask=w_mask, other=0.0)
            ups = tl.dot(x, tl.trans(w), ups, input_precision=PRECISION)
    if HAS_NORM:
        row_scale = tl.rsqrt(squares / K + eps)[:, None]
        products = products * row_scale
        ups = ups * row_scale
    if IS_GATED:
        products = products / (1.0 + tl.exp(-products)) * ups
    out_at = m[:, None] * N + n[None, :]
    mask = in_m[:, None] & in_n[None, :]
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + out_at, mask=mask, other=0.0).to(tl.float32)
        products = residual + branch_scale * products
    tl.store(out_ptr + out_at, products.to(dtype), mask=mask)


@triton.jit
def _euler_kernel(
    v_ptr, x_ptr, cfg_ptr, dt_ptr, out_ptr, eps, B, N: tl.constexpr, N_PAD: tl.constexpr
):  # fmt: skip
    """Guidance and Euler step of one request: both branches' velocities -> the next state."""
    row = tl.program_id(0)
    n = tl.arange(0, N_PAD)
    mask = n < N
    conditional = tl.load(v_ptr + row * N + n, mask=mask, other=0.0).to(tl.float32)
    unconditional = tl.load(v_ptr + (B + row) * N + n, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + row * N + n, mask=mask, other=0.0)
    dot = tl.sum(conditional * unconditional, axis=0)
    norm = tl.sum(unconditional * unconditional, axis=0)
    base = unconditional * (dot / (norm + eps))
    guided = base + tl.load(cfg_ptr + row) * (conditional - base)
    tl.store(out_ptr + row * N + n, x - tl.load(dt_ptr) * guided, mask=mask)


def euler_step(v: Tensor, x: Tensor, cfg: Tensor, dt: Tensor, eps: float) -> Tensor:
    """x - dt * guide(v) as in `cfm`.

    Args:
        v: [2B, P, D] velocities, conditional rows first.
        x: [B, P, D] fp32.
        cfg: [B] fp32.
        dt: [] fp32.
        eps: of the projection's denominator.

    Returns:
        [B, P, D] fp32.
    """
    B, P, D = x.shape
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _euler_kernel[(B,)](
        v.contiguous(), x.contiguous(), cfg.contiguous(), dt, out, eps, B,
        N=P * D, N_PAD=triton.next_power_of_2(P * D), num_warps=2,
    )  # fmt: skip
    return out


def attend(
    qkv: Tensor, T: int, rope: tuple[Tensor, Tensor] | None, n_heads: int, n_kv: int, head_dim: int
) -> Tensor:
    """As `FusedLayer.attend`: [B * T, (q + 2 kv) * hd] -> [B * T, q * hd]."""
    out = qkv.new_empty(qkv.shape[0], n_heads * head_dim)
    cos, sin = rope if rope is not None else (qkv, qkv)
    _attend_kernel[(qkv.shape[0] // T, n_heads)](
        qkv, cos, sin, out, head_dim**-0.5,
        T=T, T_PAD=max(16, triton.next_power_of_2(T)), HEAD=head_dim,
        N_HEADS=n_heads, N_KV=n_kv, HAS_ROPE=rope is not None, PRECISION=_precision(qkv),
        num_warps=2,
    )  # fmt: skip
    return out


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """[M, H] -> [M, H]."""
    M, H = x.shape
    out = torch.empty_like(x)
    _norm_kernel[(M,)](x, gain, out, eps, H=H, H_PAD=triton.next_power_of_2(H), num_warps=4)
    return out


def silu_gate(gate_up: Tensor) -> Tensor:
    """Gate beside up [M, 2F] -> silu(gate) * up [M, F]."""
    M, F = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(M, F)
    block = min(2048, triton.next_power_of_2(F))
    _gate_kernel[(M, triton.cdiv(F, block))](gate_up, out, F=F, BLOCK=block, num_warps=4)
    return out


def skinny_linear(
    x: Tensor,
    weight: Tensor,
    tile: Tile,
    *,
    gain: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
    branch_scale: float = 1.0,
) -> Tensor:
    """[norm](x) @ weight.T, gated or onto a residual.

    Args:
        x: [M, K], contiguous.
        weight: [N, K]; gate above up, [2N, K], where gated.
        tile: launch shape.
        gain: [K] of an RMS norm before the product.
        eps: of that norm.
        gated: return silu(gate) * up.
        residual: [M, N] that the product, times `branch_scale`, is added to.
        branch_scale: see `residual`.

    Returns:
        [M, N].
    """
    M, K = x.shape
    N = weight.shape[0] // (2 if gated else 1)
    out = x.new_empty(M, N)
    m_pad = min(64, max(16, triton.next_power_of_2(M)))
    _skinny_kernel[(triton.cdiv(N, tile.n), triton.cdiv(M, m_pad))](
        x, x if gain is None else gain, weight, x if residual is None else residual, out, eps,
        branch_scale, M, N=N, K=K, M_PAD=m_pad, TILE_N=tile.n, TILE_K=tile.k,
        HAS_NORM=gain is not None, IS_GATED=gated, HAS_RESIDUAL=residual is not None,
        PRECISION=_precision(x), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


def _precision(x: Tensor) -> str:
    """fp32 products stay fp32 (they are for tests); lower precisions have one way only."""
    return "ieee" if x.dtype == torch.float32 else "tf32"
