"""LocDiT: the velocity network of the flow over one patch.

Source: voxcpm/modules/locdit/local_dit_v2.py and local_dit.py, `VoxCPMLocDiT` of each.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxnative.config_lm import LMConfig
from voxnative.nn.blocks import TransformerStack

_TIME_SCALE = 1000.0  # flow time runs over 0..1, the sinusoids expect 0..1000
_MAX_PERIOD = 10_000.0


class TimeMLP(nn.Module):
    """Sinusoid features of a flow time -> embedding.

    Source: `TimestepEmbedding`.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(hidden_size, hidden_size)
        self.linear_2 = nn.Linear(hidden_size, hidden_size)

    def forward(self, features: Tensor) -> Tensor:
        """[B, H] -> [B, H]."""
        return self.linear_2(F.silu(self.linear_1(features)))


class LocalDiT(nn.Module):
    """Bidirectional transformer over [head, cond (P), x (P)]; reads the last P.

    The head is [mu (2), time (1)], or [mu + time (1)] where mu is one token.

    Args:
        cfg: its sizes.
        feat_dim: channels of a latent frame (D).
        patch_size: latent frames a patch (P).
        n_mu_tokens: 1 or 2, see `Family`.
    """

    def __init__(self, cfg: LMConfig, feat_dim: int, patch_size: int, n_mu_tokens: int) -> None:
        super().__init__()
        self.n_mu_tokens = n_mu_tokens
        self.hidden_size = cfg.hidden_size
        self.in_proj = nn.Linear(feat_dim, cfg.hidden_size)
        self.cond_proj = nn.Linear(feat_dim, cfg.hidden_size)
        self.out_proj = nn.Linear(cfg.hidden_size, feat_dim)
        self.time_mlp = TimeMLP(cfg.hidden_size)
        self.delta_time_mlp = TimeMLP(cfg.hidden_size)
        self.decoder = TransformerStack(cfg, n_positions=n_mu_tokens + 1 + 2 * patch_size)

    @property
    def n_head_tokens(self) -> int:
        """Tokens in front of the condition's; a single mu has the time added to it."""
        return self.n_mu_tokens + 1 if self.n_mu_tokens > 1 else 1

    def forward(self, x: Tensor, mu: Tensor, t: Tensor, dt: Tensor, cond: Tensor) -> Tensor:
        """Velocity of the flow at time `t`.

        Args:
            x: the patch under way [B, P, D].
            mu: condition from the two LMs [B, n_mu_tokens * H_dit], zeros for the unconditional
                branch.
            t: flow time, 1 (noise) to 0 (speech) [B].
            dt: length of the step [B], 0 unless the checkpoint was trained in mean mode.
            cond: the previous patch [B, P, D].

        Returns:
            Velocity [B, P, D].
        """
        return self.velocity(x, mu, self.embed_time(t, dt), cond)

    def embed_time(self, t: Tensor, dt: Tensor, n_rows: int | None = None) -> Tensor:
        """Times [B], step lengths [B] -> [B, H_dit]; depends on the grid alone.

        Args:
            t: flow times.
            dt: step lengths.
            n_rows: embed them for each row of a batch, whose LoRA adapters may differ:
                [n_rows, B, H_dit].
        """
        dtype = self.in_proj.weight.dtype
        features_t = sinusoids(t, self.hidden_size).to(dtype)
        features_dt = sinusoids(dt, self.hidden_size).to(dtype)
        if n_rows is not None:
            # Copies: of one row that is read many times, a batch of products would be made, and of
            # a batch of one a single product, which rounds differently.
            features_t = features_t.expand(n_rows, -1, -1).contiguous()
            features_dt = features_dt.expand(n_rows, -1, -1).contiguous()
        return self.time_mlp(features_t) + self.delta_time_mlp(features_dt)

    def velocity(self, x: Tensor, mu: Tensor, time: Tensor, cond: Tensor) -> Tensor:
        """As `forward`, with the time embedding [B, H_dit] already made."""
        dtype = self.in_proj.weight.dtype
        mu_tokens = mu.to(dtype).view(x.shape[0], self.n_mu_tokens, self.hidden_size)
        cond_tokens = self.cond_proj(cond.to(dtype))
        return self.denoise(self.in_proj(x.to(dtype)), mu_tokens, time, cond_tokens)

    def denoise(
        self, x_tokens: Tensor, mu_tokens: Tensor, time: Tensor, cond_tokens: Tensor
    ) -> Tensor:
        """As `velocity`, of tokens: [B, P, H], [B, n_mu, H], [B or 1, H], [B, P, H]."""
        B, P, H = x_tokens.shape
        times = time.unsqueeze(1).expand(B, 1, H)
        head = (mu_tokens, times) if self.n_mu_tokens > 1 else (mu_tokens + times,)
        tokens = torch.cat((*head, cond_tokens, x_tokens), dim=1)  # [B, 3 + 2P or 1 + 2P, H]
        return self.out_proj(self.decoder.last(tokens, P))


def sinusoids(t: Tensor, dim: int) -> Tensor:
    """Sines beside cosines of a flow time at geometric frequencies, [B] -> [B, dim].

    Source: `SinusoidalPosEmb`.
    """
    half = dim // 2
    exponents = torch.arange(half, dtype=t.dtype, device=t.device)
    frequencies = torch.exp(exponents * -(math.log(_MAX_PERIOD) / (half - 1)))
    angles = _TIME_SCALE * t.unsqueeze(1) * frequencies.unsqueeze(0)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)
