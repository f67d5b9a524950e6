"""Causal convolutions whose left context is an argument.

A layer sees `n_tail` columns of its earlier input. A whole signal starts from zeros; a stream
hands the last columns of one chunk to the next call, so that chunks concatenate to the whole.

Source: voxcpm/modules/audiovae/audio_vae_v2.py `CausalConv1d`, `CausalTransposeConv1d`,
`StreamingVAEDecoder`.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class CausalConv1d(nn.Conv1d):
    """Convolution padded on the left only; with a stride, n * stride samples give n."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        n_late: int = 0,
    ) -> None:
        """`n_late`: columns that each output lies further in the past (fewer than a stride)."""
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            dilation=dilation,
            groups=groups,
        )
        self.n_tail = (kernel_size - 1) * dilation - (stride - 1) + n_late

    def forward(self, x: Tensor) -> Tensor:
        """A whole signal [B, C_in, n] -> [B, C_out, n / stride]."""
        return self.advance(F.pad(x, (self.n_tail, 0)) if self.n_tail else x)

    def advance(self, context: Tensor) -> Tensor:
        """Tail and new columns [B, C_in, n_tail + n] -> the new output [B, C_out, n / stride]."""
        return super().forward(context)


class CausalTransposeConv1d(nn.ConvTranspose1d):
    """Upsampling by `stride` with a kernel of two strides: each output sees two inputs."""

    n_tail = 1

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size=2 * stride, stride=stride)
        self._stride = stride

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """A whole signal [B, C_in, n] -> [B, C_out, n * stride]."""
        return self.advance(F.pad(x, (self.n_tail, 0)))

    def advance(self, context: Tensor) -> Tensor:
        """Tail and new columns [B, C_in, 1 + n] -> the new output [B, C_out, n * stride].

        Each column spreads over its own stride and the next: one matrix product, then the
        second half of a column's output is added to the first half of its successor's.
        (The general transposed convolution is several times slower at few columns.)
        """
        B, C_in, n_columns = context.shape
        columns = context.transpose(1, 2).reshape(B * n_columns, C_in)
        spread = (columns @ self.weight.view(C_in, -1)).view(B, n_columns, -1, 2, self._stride)
        out = spread[:, 1:, :, 0] + spread[:, :-1, :, 1]  # [B, n, C_out, stride]
        assert self.bias is not None
        return out.transpose(1, 2).flatten(2) + self.bias.unsqueeze(1)


CausalLayer = CausalConv1d | CausalTransposeConv1d
