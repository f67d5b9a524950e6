"""LoRA of projections whose weights were folded into one matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from voxnative.nn.lora import AdaptedLinear, AdapterRows, add_masked


class FusedLowRank:
    """What the adapters add to the outputs of one folded matrix; the matrix stays as it is.

    The projections have one input, so that their low ranks are one product.

    Args:
        projections: of the matrix, in its order; at least one takes adapters.
    """

    def __init__(self, projections: Sequence[nn.Module]) -> None:
        self.parts: list[tuple[Tensor, int]] = []  # (stack B, first column of the output)
        begin, layers = 0, []
        for projection in projections:
            if isinstance(projection, AdaptedLinear):
                layers.append(projection.low_rank)
                self.parts.append((projection.low_rank.stack_b, begin))
            begin += projection.get_parameter("weight").shape[0]
        self.rows: AdapterRows = layers[0].rows
        self.stack_a = torch.stack([layer.stack_a for layer in layers])  # [n, slots, r, in]
        for layer, stack_a in zip(layers, self.stack_a, strict=True):
            layer.stack_a = stack_a  # adapters are written through it, into the common stack

    def add(self, y: Tensor, x: Tensor, n_tokens: int, *, alpha: float = 1.0) -> None:
        """Add to y [k * B * T, out] in place what the rows' adapters make of x [k * B * T, in].

        Args:
            y: outputs of the folded matrix, or a residual that they were added to.
            x: its inputs.
            n_tokens: T, tokens of a row.
            alpha: a factor of what is added.
        """
        foreign = self.rows.foreign
        if foreign is None:
            assert self.rows.slots is None, "folded layers take masked rows only"
            return
        add_masked(y, x, n_tokens, foreign, self.stack_a, self.parts, alpha=alpha)


def fused_low_rank(matrices: dict[str, tuple[nn.Module, ...]]) -> dict[str, FusedLowRank]:
    """The low ranks of those folded matrices, by name, that adapters may change."""
    return {
        name: FusedLowRank(projections)
        for name, projections in matrices.items()
        if any(isinstance(projection, AdaptedLinear) for projection in projections)
    }
