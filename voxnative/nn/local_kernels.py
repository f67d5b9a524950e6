"""Triton kernels of the local transformers: what stands between the matrix products.

A sequence is one patch: 5 tokens in the encoder, 11 in the DiT. The products are the library's at
any number of rows: skinny products of our own, with norm, gate and residual in them, took up to
twice its time on an H200 (plan/LOG.md).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Programs of the attention that fill a large GPU (132 processors on an H200) about twice.
_MANY_PROGRAMS = 256


@triton.jit
def _attend_kernel(
    qkv_ptr, cos_ptr, sin_ptr, out_ptr, scale,
    T: tl.constexpr, T_PAD: tl.constexpr, HEAD: tl.constexpr, N_HEADS: tl.constexpr,
    N_KV: tl.constexpr, GROUP: tl.constexpr, HAS_ROPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """GROUP heads of one sequence that share keys: rope, softmax over T tokens, mix."""
    sequence, first_head = tl.program_id(0), tl.program_id(1) * GROUP
    kv_head = first_head // (N_HEADS // N_KV)
    width = (N_HEADS + 2 * N_KV) * HEAD
    half: tl.constexpr = HEAD // 2
    d, wide, t = tl.arange(0, half), tl.arange(0, HEAD), tl.arange(0, T_PAD)
    row = tl.arange(0, GROUP * T_PAD)  # head by head, T_PAD tokens each
    token, head = row % T_PAD, first_head + row // T_PAD
    is_query, is_key = (token < T)[:, None], (t < T)[:, None]
    dtype = out_ptr.dtype.element_ty

    q_at = ((sequence * T + token) * width + head * HEAD)[:, None] + d[None, :]
    k_at = ((sequence * T + t) * width + (N_HEADS + kv_head) * HEAD)[:, None] + d[None, :]
    q1 = tl.load(qkv_ptr + q_at, mask=is_query, other=0.0)
    q2 = tl.load(qkv_ptr + q_at + half, mask=is_query, other=0.0)
    k1 = tl.load(qkv_ptr + k_at, mask=is_key, other=0.0)
    k2 = tl.load(qkv_ptr + k_at + half, mask=is_key, other=0.0)
    if HAS_ROPE:
        # The tables' halves are equal: pairs (d, d + HEAD / 2) turn by one angle.
        at = token[:, None] * HEAD + d[None, :]
        cos = tl.load(cos_ptr + at, mask=is_query, other=0.0)
        sin = tl.load(sin_ptr + at, mask=is_query, other=0.0)
        a, b = q1.to(tl.float32), q2.to(tl.float32)
        q1 = (a * cos - b * sin).to(dtype)
        q2 = (b * cos + a * sin).to(dtype)
        at = t[:, None] * HEAD + d[None, :]
        cos = tl.load(cos_ptr + at, mask=is_key, other=0.0)
        sin = tl.load(sin_ptr + at, mask=is_key, other=0.0)
        a, b = k1.to(tl.float32), k2.to(tl.float32)
        k1 = (a * cos - b * sin).to(dtype)
        k2 = (b * cos + a * sin).to(dtype)
    scores = tl.dot(q1, tl.trans(k1), input_precision=PRECISION)
    scores = tl.dot(q2, tl.trans(k2), scores, input_precision=PRECISION) * scale
    scores = tl.where((t < T)[None, :], scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    weights = weights / tl.sum(weights, axis=1)[:, None]
    v_at = ((sequence * T + t) * width + (N_HEADS + N_KV + kv_head) * HEAD)[:, None]
    v = tl.load(qkv_ptr + v_at + wide[None, :], mask=is_key, other=0.0)
    mixed = tl.dot(weights.to(dtype), v, input_precision=PRECISION)
    out_at = ((sequence * T + token) * N_HEADS + head) * HEAD
    tl.store(out_ptr + out_at[:, None] + wide[None, :], mixed.to(dtype), mask=is_query)


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
    qkv: Tensor,
    T: int,
    rope: tuple[Tensor, Tensor] | None,
    n_heads: int,
    n_kv: int,
    head_dim: int,
    *,
    batch_invariant: bool = False,
) -> Tensor:
    """As `FusedLayer.attend`: [B * T, (q + 2 kv) * hd] -> [B * T, q * hd].

    ``rope`` holds cosines and sines whose two halves are equal, as `rope.rope_tables` makes them.
    With `batch_invariant` a program's tile, and with it the order of its sums, is the same for any
    number of sequences.
    """
    out = qkv.new_empty(qkv.shape[0], n_heads * head_dim)
    cos, sin = rope if rope is not None else (qkv, qkv)
    n_sequences = qkv.shape[0] // T
    group = 1 if batch_invariant else heads_a_program(n_sequences, n_heads, n_kv)
    _attend_kernel[(n_sequences, n_heads // group)](
        qkv, cos, sin, out, head_dim**-0.5,
        T=T, T_PAD=max(16, triton.next_power_of_2(T)), HEAD=head_dim, N_HEADS=n_heads, N_KV=n_kv,
        GROUP=group, HAS_ROPE=rope is not None, PRECISION=_precision(qkv),
        num_warps=max(2, group),
    )  # fmt: skip
    return out


def heads_a_program(n_sequences: int, n_heads: int, n_kv: int) -> int:
    """Query heads that one program of the attention takes, a power of two.

    Heads that share keys load them and the tables once; but there should be many programs.
    """
    shared = n_heads // n_kv
    group = shared & -shared  # its largest power of two
    while group > 1 and n_sequences * n_heads // group < _MANY_PROGRAMS:
        group //= 2
    return group


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


def _precision(x: Tensor) -> str:
    """fp32 products stay fp32 (they are for tests); lower precisions have one way only."""
    return "ieee" if x.dtype == torch.float32 else "tf32"
