"""LocEnc: one patch of latent frames -> one embedding.

Source: voxcpm/modules/locenc/local_encoder.py `VoxCPMLocEnc`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voxnative.config_lm import LMConfig
from voxnative.nn.blocks import TransformerStack


class LocalEncoder(nn.Module):
    """Bidirectional transformer over [CLS, P frames]; the CLS output stands for the patch."""

    def __init__(self, cfg: LMConfig, feat_dim: int, patch_size: int) -> None:
        super().__init__()
        self.special_token = nn.Parameter(torch.zeros(1, 1, 1, cfg.hidden_size))
        self.in_proj = nn.Linear(feat_dim, cfg.hidden_size)
        self.encoder = TransformerStack(cfg, n_positions=1 + patch_size)

    def forward(self, patches: Tensor) -> Tensor:
        """Patches [B, P, D] -> embeddings [B, H_enc]."""
        B, _, _ = patches.shape
        cls = self.special_token.view(1, 1, -1).expand(B, 1, -1)
        return self.encoder(torch.cat((cls, self.in_proj(patches)), dim=1))[:, 0]
