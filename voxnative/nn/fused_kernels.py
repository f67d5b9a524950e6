"""A fused layer on Triton kernels: five launches for few rows, eight and a library for many."""

from __future__ import annotations

import torch
from torch import Tensor

from voxnative.nn.fused import FusedLayer
from voxnative.nn.local_kernels import (
    MAX_SKINNY_ROWS,
    Tile,
    attend,
    rms_norm,
    silu_gate,
    skinny_linear,
)

# Launch shapes of the four products; chosen so that each gives all 132 processors of a Hopper
# GPU weights to stream at the published sizes.
TILES = {
    "qkv": Tile(n=16, k=256),  # N 2560: 160 programs
    "out": Tile(n=16, k=256),  # N 1024, K 2048: 64 programs
    "gate_up": Tile(n=32, k=128),  # N 4096 twice: 128 programs
    "down": Tile(n=16, k=256),  # N 1024, K 4096: 64 programs
}


def are_skinny(n_rows: int, bytes_each: int, *, is_cuda: bool) -> bool:
    """Whether products of this many rows run on our kernels.

    Tiles of four-byte values do not fit into a GPU's shared memory; Triton's interpreter has none.
    """
    return n_rows <= MAX_SKINNY_ROWS and (bytes_each <= 2 or not is_cuda)


class KernelLayer(FusedLayer):
    """As `FusedLayer`; products of few rows (`are_skinny`) take norm, gate and residual in.

    In 8-bit floats, and where LoRA adapters may add to them, the products are always the library's.
    """

    def forward(self, x: Tensor, T: int, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        """[B * T, H] -> [B * T, H]."""
        by_library = bool(self.fp8) or bool(self.low_rank)
        if not by_library and are_skinny(x.shape[0], x.element_size(), is_cuda=x.is_cuda):
            return self._forward_few(x, T, rope)
        return self._forward_many(x, T, rope)

    def _forward_few(self, x: Tensor, T: int, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        weights = {name: getattr(self, name) for name in TILES}
        scale, eps = self.branch_scale, self.eps
        qkv = skinny_linear(x, weights["qkv"], TILES["qkv"], gain=self.attention_gain, eps=eps)
        mixed = attend(qkv, T, rope, self.n_heads, self.n_kv_heads, self.head_dim)
        x = skinny_linear(mixed, weights["out"], TILES["out"], residual=x, branch_scale=scale)
        active = skinny_linear(
            x, weights["gate_up"], TILES["gate_up"], gain=self.mlp_gain, eps=eps, gated=True
        )
        return skinny_linear(active, weights["down"], TILES["down"], residual=x, branch_scale=scale)

    def _forward_many(self, x: Tensor, T: int, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        qkv = self.product("qkv", rms_norm(x, self.attention_gain, self.eps), T)
        mixed = attend(qkv, T, rope, self.n_heads, self.n_kv_heads, self.head_dim)
        x = self._onto("out", x, mixed, T)
        gate_up = self.product("gate_up", rms_norm(x, self.mlp_gain, self.eps), T)
        return self._onto("down", x, silu_gate(gate_up), T)

    def _onto(self, name: str, x: Tensor, branch: Tensor, T: int) -> Tensor:
        """x + branch_scale * (branch @ matrix.T), in the product's own epilogue."""
        if self.fp8:
            return torch.add(x, self.product(name, branch, T), alpha=self.branch_scale)
        y = torch.addmm(x, branch, getattr(self, name).t(), alpha=self.branch_scale)
        low_rank = self.low_rank.get(name)
        if low_rank is not None:
            low_rank.add(y, branch, T, alpha=self.branch_scale)
        return y
