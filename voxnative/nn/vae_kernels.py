"""Triton kernels of the AudioVAE's decoder: what stands between its matrix products, fused.

Signals are [C, B, n], channels outside and streams inside: a 1x1 convolution of all streams is one
matrix product, whose weights are read once.

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
# Columns of a product's operand come in multiples of this: tensor cores want rows of 16 bytes.
ALIGNED_COLUMNS = 8
_BLOCK_N = 256
_INVERSE_PI = tl.constexpr(0.3183098861837907)


@triton.jit
def _snake(x, frequency, inverse):
    """x + sin^2(alpha x) / alpha, fp32, of frequency = alpha / pi and inverse = 1 / alpha.

    sin^2 has the period pi and is even: a polynomial of the squared distance to the nearest
    multiple does (fitted; off by 2.4e-7 at most), where a sine costs several times as much.
    """
    turns = frequency * x
    r = turns - tl.floor(turns + 0.5)
    s = r * r
    q = 13.049796 - 3.3561087 * s
    q = -30.1014 + q * s
    q = 42.727192 + q * s
    q = -32.46967 + q * s
    q = 9.869604 + q * s
    return x + s * q * inverse


@triton.jit
def _unit_kernel(
    x_ptr, offset_ptr, tail_ptr, weight_ptr, bias_ptr, alpha1_ptr, alpha2_ptr, out_ptr,
    new_tail_ptr, C, B, N, DILATION: tl.constexpr, TAPS: tl.constexpr, PAD: tl.constexpr,
    PAD_BLOCK: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """snake(conv(snake(x + offset))) of one block of one channel of one stream."""
    row = tl.program_id(0)  # channel * B + stream
    channel, stream = (row // B).to(tl.int64), row % B
    signal = row.to(tl.int64) * N
    tails = (stream * C + channel) * PAD
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offset = tl.load(offset_ptr + channel).to(tl.float32)
    alpha1 = tl.load(alpha1_ptr + channel).to(tl.float32)
    alpha2 = tl.load(alpha2_ptr + channel).to(tl.float32)
    frequency1, inverse1 = alpha1 * _INVERSE_PI, 1.0 / (alpha1 + 1e-9)
    frequency2, inverse2 = alpha2 * _INVERSE_PI, 1.0 / (alpha2 + 1e-9)
    total = tl.zeros((BLOCK_N,), tl.float32) + tl.load(bias_ptr + channel).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    for tap in tl.static_range(TAPS):
        at = n - (TAPS - 1 - tap) * DILATION
        is_new = (at >= 0) & (n < N)
        fresh = tl.load(x_ptr + signal + at, mask=is_new, other=0.0).to(tl.float32) + offset
        fresh = _snake(fresh, frequency1, inverse1).to(dtype)
        kept = tl.load(tail_ptr + tails + PAD + at, mask=(at < 0) & (n < N), other=0.0)
        value = tl.where(at >= 0, fresh, kept.to(dtype)).to(tl.float32)
        total += value * tl.load(weight_ptr + channel * TAPS + tap).to(tl.float32)
    total = _snake(total.to(dtype).to(tl.float32), frequency2, inverse2)
    tl.store(out_ptr + signal + n, total.to(dtype), mask=n < N)
    if tl.program_id(1) == 0:
        # Names of its own: Triton wants a name's shape to be the same on both ways.
        p = tl.arange(0, PAD_BLOCK)
        column = N + p - PAD  # of the chunk; below 0: of the old tail
        is_fresh, is_kept = (p < PAD) & (column >= 0), (p < PAD) & (column < 0)
        last = tl.load(x_ptr + signal + column, mask=is_fresh, other=0.0).to(tl.float32) + offset
        last = _snake(last, frequency1, inverse1)
        older = tl.load(tail_ptr + tails + PAD + column, mask=is_kept, other=0.0)
        tail = tl.where(column >= 0, last.to(dtype), older.to(dtype))
        tl.store(new_tail_ptr + tails + p, tail, mask=p < PAD)


@triton.jit
def _context_kernel(
    x_ptr, scale_ptr, offset_ptr, tail_ptr, alpha_ptr, out_ptr, C, B, N, channel_stride,
    stream_stride, WIDTH, PAD: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """[tail, snake(x * scale + offset), zeros] of one channel of one stream: WIDTH columns."""
    row = tl.program_id(0)  # channel * B + stream
    channel, stream = (row // B).to(tl.int64), row % B
    signal = row.to(tl.int64) * N
    at = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_old, is_new = at < PAD, (at >= PAD) & (at < PAD + N)
    dtype = out_ptr.dtype.element_ty
    x = tl.load(x_ptr + signal + at - PAD, mask=is_new, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + channel).to(tl.float32)
    x = x * scale + tl.load(offset_ptr + channel).to(tl.float32)
    alpha = tl.load(alpha_ptr + channel).to(tl.float32)
    fresh = _snake(x, alpha * _INVERSE_PI, 1.0 / (alpha + 1e-9)).to(dtype)
    tails = (stream * C + channel) * PAD
    kept = tl.load(tail_ptr + tails + at, mask=is_old, other=0.0).to(dtype)
    value = tl.where(is_old, kept, tl.where(is_new, fresh, 0.0))
    out = channel * channel_stride + stream * stream_stride
    tl.store(out_ptr + out + at, value.to(dtype), mask=at < WIDTH)


@triton.jit
def _spread_kernel(
    spread_ptr, bias_ptr, out_ptr, B, N, COLUMNS, STRIDE: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Second half of a column's output onto the first half of its successor's, and the bias."""
    row = tl.program_id(0)  # channel * B + stream
    channel, stream = (row // B).to(tl.int64), row % B
    signal = row.to(tl.int64) * N
    at = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = at < N * STRIDE
    column, phase = at // STRIDE, at % STRIDE
    plane = B * COLUMNS  # one phase of one channel, all streams
    base = channel * (2 * STRIDE) * plane + stream * COLUMNS
    first = tl.load(spread_ptr + base + phase * plane + column + 1, mask=mask, other=0.0)
    second = tl.load(spread_ptr + base + (STRIDE + phase) * plane + column, mask=mask, other=0.0)
    out = first.to(tl.float32) + second.to(tl.float32) + tl.load(bias_ptr + channel).to(tl.float32)
    tl.store(out_ptr + signal * STRIDE + at, out.to(out_ptr.dtype.element_ty), mask=mask)


def residual_taps(
    x: Tensor, offset: Tensor, tail: Tensor, weight: Tensor, bias: Tensor, dilation: int,
    alpha1: Tensor, alpha2: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The part of a residual unit before its 1x1 convolution.

    Args:
        x: [C, B, n], contiguous.
        offset: [C] added to x.
        tail: [B, C, pad] columns of the convolution's input before x, pad = 6 * dilation.
        weight: [C, 7]; bias [C].
        dilation: between taps.
        alpha1, alpha2: [C] of the snakes before and behind the convolution.

    Returns:
        [C, B, n], and the next tail [B, C, pad].
    """
    C, B, n = x.shape
    pad = (N_TAPS - 1) * dilation
    out, new_tail = torch.empty_like(x), x.new_empty(B, C, pad)
    block = min(_BLOCK_N, max(16, triton.next_power_of_2(n)))
    _unit_kernel[(C * B, triton.cdiv(n, block))](
        x, offset, tail.contiguous(), weight, bias, alpha1, alpha2, out, new_tail, C, B, n,
        DILATION=dilation, TAPS=N_TAPS, PAD=pad, PAD_BLOCK=triton.next_power_of_2(pad),
        BLOCK_N=block, num_warps=1 if block < 128 else 2,
    )  # fmt: skip
    return out, new_tail


def snake_context(
    x: Tensor, scale: Tensor, offset: Tensor, tail: Tensor, alpha: Tensor, *, by_stream: bool
) -> Tensor:
    """[tail, snake(x * scale + offset)], a causal layer's input.

    Args:
        x: [C, B, n], contiguous.
        scale, offset, alpha: [C].
        tail: [B, C, pad].
        by_stream: the layout of the result.

    Returns:
        [B, C, pad + n] by stream; else [C, B, columns], zeros behind pad + n up to the next
        multiple of `ALIGNED_COLUMNS`.
    """
    C, B, n = x.shape
    pad = tail.shape[2]
    if by_stream:
        out = x.new_empty(B, C, pad + n)
        stream_stride, channel_stride, _ = out.stride()
    else:
        out = x.new_empty(C, B, -(-(pad + n) // ALIGNED_COLUMNS) * ALIGNED_COLUMNS)
        channel_stride, stream_stride, _ = out.stride()
    width = out.shape[2]
    block = min(_BLOCK_N, max(16, triton.next_power_of_2(width)))
    _context_kernel[(C * B, triton.cdiv(width, block))](
        x, scale, offset, tail.contiguous(), alpha, out, C, B, n, channel_stride, stream_stride,
        width, PAD=pad, BLOCK_N=block, num_warps=1 if block < 128 else 2,
    )  # fmt: skip
    return out


def combine_spread(spread: Tensor, bias: Tensor, stride: int, n: int) -> Tensor:
    """Columns' outputs -> the upsampled signal.

    Args:
        spread: [C * 2 * stride, B, columns], of at least n + 1 columns a stream.
        bias: [C].
        stride: of the upsampling.
        n: columns of the input.

    Returns:
        [C, B, n * stride].
    """
    width, B, columns = spread.shape
    C = width // (2 * stride)
    out = spread.new_empty(C, B, n * stride)
    block = min(_BLOCK_N, max(16, triton.next_power_of_2(n * stride)))
    _spread_kernel[(C * B, triton.cdiv(n * stride, block))](
        spread, bias, out, B, n, columns, STRIDE=stride, BLOCK_N=block,
        num_warps=1 if block < 128 else 2,
    )  # fmt: skip
    return out
