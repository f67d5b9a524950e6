"""Matrices in 8-bit floats (e4m3), a scale for each output row, for Hopper's fp8 products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_FP8 = torch.float8_e4m3fn
_MAX = torch.finfo(_FP8).max


@dataclass(frozen=True)
class Fp8Weight:
    """A quantised matrix [N, K].

    Attributes:
        values: [N, K] e4m3.
        scales: [N, 1] fp32; values * scales is the matrix.
    """

    values: Tensor
    scales: Tensor

    def product(self, x: Tensor) -> Tensor:
        """x [M, K] -> [M, N], with x quantised a row at a time.

        On CUDA one scaled product of the tensor cores; elsewhere the same numbers in fp32.
        """
        if x.is_cuda:
            from voxnative.nn.fp8_kernel import quantize

            x_values, x_scales = quantize(x.contiguous())
            return torch._scaled_mm(
                x_values,
                self.values.t(),
                scale_a=x_scales,
                scale_b=self.scales.t(),
                out_dtype=x.dtype,
            )
        x_values, x_scales = _quantize(x)
        product = x_values.float() @ self.values.float().t()
        return (product * x_scales * self.scales.t()).to(x.dtype)


def quantize_rows(matrix: Tensor) -> Fp8Weight:
    """A matrix [N, K] with one scale a row."""
    values, scales = _quantize(matrix)
    return Fp8Weight(values, scales)


def _quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """[M, K] -> e4m3 [M, K] and fp32 [M, 1]."""
    scales = x.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / _MAX
    return (x.float() / scales).to(_FP8), scales
