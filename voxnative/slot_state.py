"""Device-resident state of the running requests: one row a slot, and a scratch row behind them.

The tensors never move, so that captured graphs may hold their addresses. Rows that pad a batch
carry the scratch slot: what they compute is written there and read by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from voxnative.config import VoxConfig
from voxnative.nn.audio_vae import AudioVAE
from voxnative.nn.vae_stream import init_stream


@dataclass(frozen=True)
class ParkedRow:
    """One slot's content while its request is preempted."""

    previous_patch: Tensor  # [P, D]
    next_embed: Tensor  # [H]
    tails: Tensor  # [n_tail_values]


class SlotState:
    """What the step reads and writes on the device.

    Args:
        config: the checkpoint's configuration.
        vae: the AudioVAE whose causal tails are kept here.
        n_slots: requests that run at once at most.
        dtype: of the language models' embeddings.
        vae_dtype: of the decoder's tails.
        device: where the tensors live.
    """

    def __init__(
        self,
        config: VoxConfig,
        vae: AudioVAE,
        n_slots: int,
        dtype: torch.dtype,
        vae_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.scratch = n_slots
        P, D, H = config.patch_size, config.feat_dim, config.lm.hidden_size
        # Each line: shape; written by; read by.
        self.previous_patch = torch.zeros(n_slots + 1, P, D, device=device)
        # ^ [S + 1, P, D] fp32; step, prime; CFM condition
        self.next_embed = torch.zeros(n_slots + 1, H, dtype=dtype, device=device)
        # ^ [S + 1, H]; step; the language models' next input
        self.tail_shapes = [tuple(tail.shape[1:]) for tail in init_stream(vae, 0)]  # [(C, pad)]
        n_values = sum(channels * pad for channels, pad in self.tail_shapes)
        self.tails = torch.zeros(n_slots + 1, n_values, dtype=vae_dtype, device=device)
        # ^ [S + 1, values of all causal layers]; VAE step, prime; VAE

    def n_bytes(self) -> int:
        """Device memory of all rows."""
        return sum(t.numel() * t.element_size() for t in self._tensors())

    def clear(self, slot: int) -> None:
        """Make a slot ready for a new request, all but its tails (see `clear_tails`)."""
        self.previous_patch[slot].zero_()
        self.next_embed[slot].zero_()

    def clear_tails(self, slot: int) -> None:
        """The decoder starts from silence; apart from `clear`, as it runs on another stream."""
        self.tails[slot].zero_()

    def park(self, slot: int) -> ParkedRow:
        """Copy a slot's content, so that the slot can be given away."""
        previous_patch, next_embed, tails = (tensor[slot].clone() for tensor in self._tensors())
        return ParkedRow(previous_patch, next_embed, tails)

    def restore(self, slot: int, row: ParkedRow) -> None:
        """Put a parked row into a slot, the same or another."""
        for tensor, value in zip(
            self._tensors(), (row.previous_patch, row.next_embed, row.tails), strict=True
        ):
            tensor[slot].copy_(value)

    def gather_tails(self, slots: Tensor) -> list[Tensor]:
        """Tails of the slots `[B]`: one `[B, C, pad]` a causal layer, views of one copy."""
        rows = self.tails.index_select(0, slots)
        sizes = [channels * pad for channels, pad in self.tail_shapes]
        parts = rows.split(sizes, dim=1)
        return [part.view(-1, *shape) for part, shape in zip(parts, self.tail_shapes, strict=True)]

    def scatter_tails(self, slots: Tensor, tails: list[Tensor]) -> None:
        """Write the tails of a step back, in one copy."""
        self.tails.index_copy_(0, slots, torch.cat([tail.flatten(1) for tail in tails], dim=1))

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.previous_patch, self.next_embed, self.tails
