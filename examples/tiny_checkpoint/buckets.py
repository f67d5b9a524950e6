"""Batches of like-sized utterances, drawn on the device.

Every utterance starts at position 0, as in inference; a bucket fixes the sequence length, so
that its training step has static shapes and can be one CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from latents import TrainingSet
from reference_model import SPECIAL_IDS

LENGTHS = (
    48,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    240,
)  # positions: characters, audio_start and patches
DROP_FULL_STOP = 0.15  # people leave the last full stop out


@dataclass(frozen=True)
class Batch:
    """One batch of B utterances at L positions with at most A patches.

    ids [B, L] int64; is_text, is_audio [B, L] bool; patch_at [B, L] int64: index into A of the
    patch at a position; patches [B, A, P, D] float32, zero where not `valid` [B, A] bool;
    labels [B, A, P] int64; n_text (with audio_start), n_patches [B] int64.
    """

    ids: torch.Tensor
    is_text: torch.Tensor
    is_audio: torch.Tensor
    patch_at: torch.Tensor
    patches: torch.Tensor
    valid: torch.Tensor
    labels: torch.Tensor
    n_text: torch.Tensor
    n_patches: torch.Tensor


class Bucket:
    """Utterances of up to `length` positions.

    Args:
        data: the training set.
        members: indices [n] of the bucket's utterances.
        length: positions L of its batches.
        batch: utterances B a batch.
    """

    def __init__(self, data: TrainingSet, members: torch.Tensor, length: int, batch: int):
        self.data, self.members, self.length, self.batch = data, members, length, batch
        self.max_patches = int(data.n_patches[members].max())

    @property
    def weight(self) -> float:
        """How often this bucket must be drawn for every utterance to be equally likely."""
        return len(self.members) / self.batch

    def draw(self) -> Batch:
        """Draw one batch with replacement; safe inside a CUDA graph."""
        data, device = self.data, self.members.device
        u = self.members[(torch.rand(self.batch, device=device) * len(self.members)).long()]
        dropped = data.ends_in_stop[u] & (torch.rand(self.batch, device=device) < DROP_FULL_STOP)
        n_letters, n_patches = data.n_text[u] - dropped.long(), data.n_patches[u]
        position = torch.arange(self.length, device=device)[None]  # [1, L]
        start = n_letters[:, None]
        letters = data.text[u][:, position[0].clamp(max=data.text.shape[1] - 1)]
        ids = torch.where(position < start, letters, torch.zeros_like(letters))
        ids = ids.masked_fill(position == start, SPECIAL_IDS["audio_start"])
        order = torch.arange(self.max_patches, device=device)[None]  # [1, A]
        valid = order < n_patches[:, None]
        where = data.first_patch[u][:, None] + order
        return Batch(
            ids=ids,
            is_text=position <= start,
            is_audio=(position > start) & (position <= start + n_patches[:, None]),
            patch_at=(position - start - 1).clamp(0, self.max_patches - 1),
            patches=data.patches[where].float() * valid[..., None, None],
            valid=valid,
            labels=data.labels[where].long() * valid[..., None],
            n_text=n_letters + 1,
            n_patches=n_patches,
        )


def make_buckets(data: TrainingSet, tokens_per_batch: int) -> list[Bucket]:
    """Sort the training set into buckets; too long utterances are left out and counted."""
    total = data.n_text + 1 + data.n_patches
    buckets, lower = [], 0
    for upper in LENGTHS:
        members = torch.nonzero((total > lower) & (total <= upper)).squeeze(1)
        if len(members):
            buckets.append(Bucket(data, members, upper, max(1, tokens_per_batch // upper)))
        lower = upper
    if n_long := int((total > LENGTHS[-1]).sum()):
        print(
            f"{n_long} of {len(total)} utterances exceed {LENGTHS[-1]} positions and are left out"
        )
    return buckets
