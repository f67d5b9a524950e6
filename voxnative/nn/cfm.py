"""The Euler solver of the flow with classifier-free guidance, apart from the velocity network.

Source: voxcpm/modules/locdit/unified_cfm.py `UnifiedCFM.forward`, `solve_euler`,
`optimized_scale`; guidance after "CFG-Zero*: Improved Classifier-Free Guidance for Flow Matching
Models" (arXiv 2503.18886).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from voxnative.errors import ParameterError

MIN_TIMESTEPS = 2  # the first step stands still: one step alone would return the noise
_ZERO_VELOCITY_SHARE = 0.04  # of the grid points, at least one step
GUIDE_EPS = 1e-8


class Velocity(Protocol):
    """dx/dt of a batch; `LocalDiT` is one."""

    def __call__(self, x: Tensor, mu: Tensor, t: Tensor, dt: Tensor, cond: Tensor) -> Tensor:
        """x [B, P, D], mu [B, M], t [B], dt [B], cond [B, P, D] -> velocity [B, P, D]."""
        ...


def sway_grid(
    n_timesteps: int,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Flow times from 1 to 0, denser near 1 ("sway sampling" with coefficient 1).

    Returns:
        [n_timesteps + 1], descending.

    Raises:
        ParameterError: fewer than 2 timesteps.
    """
    if n_timesteps < MIN_TIMESTEPS:
        raise ParameterError("timesteps", n_timesteps, f"{MIN_TIMESTEPS} or more")
    t = torch.linspace(1, 0, n_timesteps + 1, device=device, dtype=dtype)
    return t + (torch.cos(math.pi / 2 * t) - 1 + t)


def solve(
    velocity: Velocity,
    noise: Tensor,
    grid: Tensor,
    *,
    mu: Tensor,
    cond: Tensor,
    cfg: Tensor,
    mean_mode: bool = False,
) -> Tensor:
    """Follow the flow from noise to a patch.

    The state keeps the dtype of `noise`, whatever the network computes in.

    Args:
        velocity: called once a step on the doubled batch (conditional rows, then mu = 0).
        noise: starting point, already scaled by the temperature [B, P, D].
        grid: descending flow times [n + 1], see `sway_grid`.
        mu: condition from the language models [B, M].
        cond: previous patch [B, P, D].
        cfg: guidance strength of each row [B].
        mean_mode: give the network the length of each step instead of 0.

    Returns:
        Patch [B, P, D].
    """
    B, _, _ = noise.shape
    mu_pair = torch.cat((mu, torch.zeros_like(mu)))
    cond_pair = torch.cat((cond, cond))
    x = noise
    for t, dt, stands_still in euler_times(grid):
        if not stands_still:
            t_pair = t.expand(2 * B)
            dt_pair = dt.expand(2 * B) if mean_mode else torch.zeros_like(t_pair)
            v = velocity(torch.cat((x, x)), mu_pair, t_pair, dt_pair, cond_pair).to(x.dtype)
            conditional, unconditional = v.chunk(2)
            x = x - dt * guide(conditional, unconditional, cfg)
    return x


def euler_times(grid: Tensor) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Time, length and whether the velocity is taken as zero, for each step along a grid.

    Args:
        grid: descending flow times [n + 1], see `sway_grid`.

    Yields:
        t [], dt [], and True where the state stands still (the first step at least).
    """
    n_points = grid.shape[0]
    n_standing = max(1, int(n_points * _ZERO_VELOCITY_SHARE))
    t, dt = grid[0], grid[0] - grid[1]
    for step in range(1, n_points):
        yield t, dt, step <= n_standing
        t = t - dt  # accumulated as the reference does: grid[step] only up to rounding
        if step + 1 < n_points:
            dt = t - grid[step + 1]


def guide(conditional: Tensor, unconditional: Tensor, cfg: Tensor) -> Tensor:
    """CFG-Zero*: project the unconditional velocity onto the conditional one, then extrapolate.

    Args:
        conditional, unconditional: velocities [B, P, D].
        cfg: guidance strength of each row [B]; 1 returns the conditional velocity.

    Returns:
        Guided velocity [B, P, D].
    """
    dot = (conditional * unconditional).sum(dim=(1, 2), keepdim=True)
    norm = unconditional.square().sum(dim=(1, 2), keepdim=True)
    base = unconditional * (dot / (norm + GUIDE_EPS))
    return base + cfg.view(-1, 1, 1) * (conditional - base)
