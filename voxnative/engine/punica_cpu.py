"""vLLM's LoRA arithmetic on a CPU, one pair of matrix products an adapter.

The stock wrapper for CPUs gathers a copy of the matrices for every token, and takes the last
slot's adapter for tokens that have none (index -1) in a batch where others have one.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.layers import LoRAMapping
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU


class GroupedPunicaCPU(PunicaWrapperCPU):
    """Groups the tokens of a step by adapter.

    Source: vLLM 0.32, ``vllm/lora/punica_wrapper/punica_base.py:PunicaWrapperBase``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups: list[tuple[int, torch.Tensor]] = []  # (slot, positions of its tokens)

    def update_metadata(
        self,
        mapping: LoRAMapping,
        lora_index_to_id: list[int | None],
        max_loras: int,
        vocab_size: int,
        **kwargs: Any,
    ) -> None:
        """Note which tokens of the step have which adapter; id 0 is none."""
        super().update_metadata(mapping, lora_index_to_id, max_loras, vocab_size, **kwargs)
        positions: dict[int, list[int]] = {}
        for position, lora_id in enumerate(mapping.index_mapping):
            if lora_id > 0:
                positions.setdefault(lora_id, []).append(position)
        self.groups = [
            (lora_index_to_id.index(lora_id), torch.tensor(tokens))
            for lora_id, tokens in positions.items()
        ]

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        *,
        buffer: tuple[torch.Tensor, ...] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add each token's low-rank product to ``y``, in place.

        Args:
            y: ``[n_tokens, sum(output_slices)]``.
            x: ``[n_tokens, in]``.
            lora_a_stacked: ``[slots, 1, r, in]`` an output slice.
            lora_b_stacked: ``[slots, 1, out, r]`` an output slice.
            scale: of the product.
            output_slices: widths of the slices of ``y``.
            buffer: unused.
            kwargs: unused.
        """
        for slot, tokens in self.groups:
            rows = x[tokens]
            begin = 0
            for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
                product = (rows @ a[slot, 0].T) @ b[slot, 0].T
                y[:, begin : begin + width].index_add_(0, tokens, product, alpha=scale)
                begin += width
