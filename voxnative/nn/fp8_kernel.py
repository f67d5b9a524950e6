"""One launch that brings the rows of an input to 8-bit floats (e4m3), each with its scale."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _quantize_kernel(x_ptr, values_ptr, scales_ptr, largest, K: tl.constexpr, K_PAD: tl.constexpr):
    """One row: its largest magnitude becomes the largest number of the format."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, K_PAD)
    x = tl.load(x_ptr + row * K + k, mask=k < K, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-12) / largest
    tl.store(values_ptr + row * K + k, (x / scale).to(tl.float8e4nv), mask=k < K)
    tl.store(scales_ptr + row, scale)


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """[M, K], contiguous -> e4m3 [M, K] and fp32 [M, 1]."""
    M, K = x.shape
    values = torch.empty(M, K, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(M, 1, dtype=torch.float32, device=x.device)
    largest = torch.finfo(values.dtype).max
    _quantize_kernel[(M,)](
        x, values, scales, largest, K=K, K_PAD=triton.next_power_of_2(K), num_warps=4
    )
    return values, scales
