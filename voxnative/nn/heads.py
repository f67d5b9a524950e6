"""The two heads on the base LM's hidden state: scalar quantiser and stop decision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ScalarQuantizer(nn.Module):
    """Rounds a low-dimensional tanh projection of the hidden state to 2 * scale + 1 levels.

    Applied at audio positions only.

    Source: voxcpm/modules/layers/scalar_quantization_layer.py `ScalarQuantizationLayer`.
    """

    def __init__(self, hidden_size: int, latent_dim: int, scale: int) -> None:
        super().__init__()
        self.scale = scale
        self.in_proj = nn.Linear(hidden_size, latent_dim)
        self.out_proj = nn.Linear(latent_dim, hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        levels = torch.round(torch.tanh(self.in_proj(hidden)) * self.scale)
        return self.out_proj(levels / self.scale)


class StopHead(nn.Module):
    """Decides whether the patch of this step is the last one.

    Source: voxcpm/model/voxcpm2.py `VoxCPM2Model.stop_proj`, `stop_head`.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.stop_proj = nn.Linear(hidden_size, hidden_size)
        self.stop_head = nn.Linear(hidden_size, 2, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden [..., H] -> logits [..., 2] of (continue, stop)."""
        return self.stop_head(F.silu(self.stop_proj(hidden)))
