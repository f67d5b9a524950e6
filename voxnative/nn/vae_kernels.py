"""Triton kernels of the AudioVAE's decoder: what stands between its matrix products, fused.

A residual unit is snake, depthwise convolution over seven dilated taps, snake, 1x1 convolution,
sum. In separate kernels each of the first three reads and writes the whole signal; here one
kernel reads it once, takes the columns before the chunk from the stream's tail, and writes the
tail of the next chunk. The 1x1 convolution is one matrix product onto the residual.

Biases of the 1x1 convolutions are constant along a channel: they are not added to the signal but
carried as an offset that the next kernel adds while it reads (`offset`). Snake is
x + sin^2(alpha x) / alpha, in fp32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

N_TAPS = 7
_BLOCK_N = 256


@triton.jit
def _unit_kernel(
    x_ptr, offset_ptr, tail_ptr, weight_ptr, bias_ptr, alpha1_ptr, alpha2_ptr, out_ptr,
    new_tail_ptr, C, N, DILATION: tl.constexpr, TAPS: tl.constexpr, PAD: tl.constexpr,
    PAD_BLOCK: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """snake(conv(snake(x + offset))) of one block of one channel of one stream."""
    row = tl.program_id(0).to(tl.int64)  # stream * C + channel
    channel = (row % C).to(tl.int32)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offset = tl.load(offset_ptr + channel).to(tl.float32)
    alpha1 = tl.load(alpha1_ptr + channel).to(tl.float32)
    alpha2 = tl.load(alpha2_ptr + channel).to(tl.float32)
    inverse1 = 1.0 / (alpha1 + 1e-9)
    total = tl.zeros((BLOCK_N,), tl.float32) + tl.load(bias_ptr + channel).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    for tap in tl.static_range(TAPS):
        at = n - (TAPS - 1 - tap) * DILATION
        is_new = (at >= 0) & (n < N)
        fresh = tl.load(x_ptr + row * N + at, mask=is_new, other=0.0).to(tl.float32) + offset
        wave = tl.sin(alpha1 * fresh)
        fresh = (fresh + wave * wave * inverse1).to(dtype)
        kept = tl.load(tail_ptr + row * PAD + PAD + at, mask=(at < 0) & (n < N), other=0.0)
        value = tl.where(at >= 0, fresh, kept.to(dtype)).to(tl.float32)
        total += value * tl.load(weight_ptr + channel * TAPS + tap).to(tl.float32)
    total = total.to(dtype).to(tl.float32)
    wave = tl.sin(alpha2 * total)
    total = total + wave * wave / (alpha2 + 1e-9)
    tl.store(out_ptr + row * N + n, total.to(dtype), mask=n < N)
    if tl.program_id(1) == 0:
        # Names of its own: Triton wants a name's shape to be the same on both ways.
        p = tl.arange(0, PAD_BLOCK)
        column = N + p - PAD  # of the chunk; below 0: of the old tail
        is_fresh, is_kept = (p < PAD) & (column >= 0), (p < PAD) & (column < 0)
        last = tl.load(x_ptr + row * N + column, mask=is_fresh, other=0.0).to(tl.float32) + offset
        last_wave = tl.sin(alpha1 * last)
        last = last + last_wave * last_wave * inverse1
        older = tl.load(tail_ptr + row * PAD + PAD + column, mask=is_kept, other=0.0)
        tail = tl.where(column >= 0, last.to(dtype), older.to(dtype))
        tl.store(new_tail_ptr + row * PAD + p, tail, mask=p < PAD)


@triton.jit
def _context_kernel(
    x_ptr, scale_ptr, offset_ptr, tail_ptr, alpha_ptr, out_ptr, C, N, PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """[tail, snake(x * scale + offset)] of one channel: PAD + N columns."""
    row = tl.program_id(0).to(tl.int64)
    channel = (row % C).to(tl.int32)
    at = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_old, is_new = at < PAD, (at >= PAD) & (at < PAD + N)
    dtype = out_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * N + at - PAD, mask=is_new, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + channel).to(tl.float32)
    x = x * scale + tl.load(offset_ptr + channel).to(tl.float32)
    alpha = tl.load(alpha_ptr + channel).to(tl.float32)
    wave = tl.sin(alpha * x)
    fresh = (x + wave * wave / (alpha + 1e-9)).to(dtype)
    kept = tl.load(tail_ptr + row * PAD + at, mask=is_old, other=0.0).to(dtype)
    tl.store(out_ptr + row * (PAD + N) + at, tl.where(is_old, kept, fresh), mask=at < PAD + N)


@triton.jit
def _spread_kernel(
    spread_ptr, bias_ptr, out_ptr, C, N, STRIDE: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Second half of a column's output onto the first half of its successor's, and the bias."""
    row = tl.program_id(0).to(tl.int64)  # stream * C + channel
    channel = (row % C).to(tl.int32)
    at = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = at < N * STRIDE
    column, phase = at // STRIDE, at % STRIDE
    base = row * (2 * STRIDE) * (N + 1)
    first = tl.load(spread_ptr + base + phase * (N + 1) + column + 1, mask=mask, other=0.0)
    second = tl.load(spread_ptr + base + (STRIDE + phase) * (N + 1) + column, mask=mask, other=0.0)
    out = first.to(tl.float32) + second.to(tl.float32) + tl.load(bias_ptr + channel).to(tl.float32)
    tl.store(out_ptr + row * (N * STRIDE) + at, out.to(out_ptr.dtype.element_ty), mask=mask)


def residual_taps(
    x: Tensor, offset: Tensor, tail: Tensor, weight: Tensor, bias: Tensor, dilation: int,
    alpha1: Tensor, alpha2: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The part of a residual unit before its 1x1 convolution.

    Args:
        x: [B, C, n], contiguous.
        offset: [C] added to x.
        tail: [B, C, pad] columns of the convolution's input before x, pad = 6 * dilation.
        weight: [C, 7]; bias [C].
        dilation: between taps.
        alpha1, alpha2: [C] of the snakes before and behind the convolution.

    Returns:
        [B, C, n], and the next tail [B, C, pad].
    """
    B, C, n = x.shape
    pad = (N_TAPS - 1) * dilation
    out, new_tail = torch.empty_like(x), x.new_empty(B, C, pad)
    block = min(_BLOCK_N, max(16, triton.next_power_of_2(n)))
    _unit_kernel[(B * C, triton.cdiv(n, block))](
        x, offset, tail.contiguous(), weight, bias, alpha1, alpha2, out, new_tail, C, n,
        DILATION=dilation, TAPS=N_TAPS, PAD=pad, PAD_BLOCK=triton.next_power_of_2(pad),
        BLOCK_N=block, num_warps=1 if block < 128 else 2,
    )  # fmt: skip
    return out, new_tail


def snake_context(x: Tensor, scale: Tensor, offset: Tensor, tail: Tensor, alpha: Tensor) -> Tensor:
    """[tail, snake(x * scale + offset)], a causal layer's input.

    Args:
        x: [B, C, n], contiguous.
        scale, offset, alpha: [C].
        tail: [B, C, pad].

    Returns:
        [B, C, pad + n]; its last `pad` columns are the next tail.
    """
    B, C, n = x.shape
    pad = tail.shape[2]
    out = x.new_empty(B, C, pad + n)
    block = min(_BLOCK_N, max(16, triton.next_power_of_2(pad + n)))
    _context_kernel[(B * C, triton.cdiv(pad + n, block))](
        x, scale, offset, tail.contiguous(), alpha, out, C, n, PAD=pad, BLOCK_N=block,
        num_warps=1 if block < 128 else 2,
    )  # fmt: skip
    return out


def combine_spread(spread: Tensor, bias: Tensor, stride: int) -> Tensor:
    """Columns' outputs [B, C * 2 * stride, n + 1] -> the upsampled signal [B, C, n * stride]."""
    B, width, columns = spread.shape
    C, n = width // (2 * stride), columns - 1
    out = spread.new_empty(B, C, n * stride)
    block = min(_BLOCK_N, max(16, triton.next_power_of_2(n * stride)))
    _spread_kernel[(B * C, triton.cdiv(n * stride, block))](
        spread, bias, out, C, n, STRIDE=stride, BLOCK_N=block, num_warps=1 if block < 128 else 2
    )
    return out
