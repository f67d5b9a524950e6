"""A fused layer on Triton kernels: four products of the library and four launches between them."""

from __future__ import annotations

import torch
from torch import Tensor

from voxnative.nn.blocks import TransformerLayer
from voxnative.nn.fused import FusedLayer, last_rows
from voxnative.nn.local_kernels import attend, rms_norm, silu_gate


class KernelLayer(FusedLayer):
    """As `FusedLayer`.

    Args:
        layer, fp8: as `FusedLayer`.
        batch_invariant: a row's result must not depend on how many rows there are: the kernels
            then sum in one order. For the library's products see ``engine.batch_invariance``.
    """

    def __init__(
        self, layer: TransformerLayer, *, fp8: bool = False, batch_invariant: bool = False
    ) -> None:
        super().__init__(layer, fp8=fp8)
        self.batch_invariant = batch_invariant

    def forward(
        self,
        x: Tensor,
        T: int,
        rope: tuple[Tensor, Tensor] | None,
        n_last: int,
        *,
        owns_input: bool = False,
    ) -> Tensor:
        """As `FusedLayer.forward`."""
        qkv = self.product("qkv", rms_norm(x, self.attention_gain, self.eps), T)
        mixed = attend(
            qkv,
            T,
            rope,
            self.n_heads,
            self.n_kv_heads,
            self.head_dim,
            batch_invariant=self.batch_invariant,
        )
        if n_last < T:
            x, mixed, owns_input = last_rows(x, T, n_last), last_rows(mixed, T, n_last), True
        x = self._onto("out", x, mixed, n_last, in_place=owns_input)
        gate_up = self.product("gate_up", rms_norm(x, self.mlp_gain, self.eps), n_last)
        return self._onto("down", x, silu_gate(gate_up), n_last, in_place=True)

    def _onto(self, name: str, x: Tensor, branch: Tensor, T: int, *, in_place: bool) -> Tensor:
        """x + branch_scale * (branch @ matrix.T), in the product's own epilogue."""
        if self.fp8:
            return torch.add(x, self.product(name, branch, T), alpha=self.branch_scale)
        matrix = getattr(self, name).t()
        out = x if in_place else torch.empty_like(x)  # else the library copies x first
        y = torch.addmm(x, branch, matrix, alpha=self.branch_scale, out=out)
        low_rank = self.low_rank.get(name)
        if low_rank is not None:
            low_rank.add(y, branch, T, alpha=self.branch_scale)
        return y
