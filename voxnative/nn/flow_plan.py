"""The flow's solver with everything that does not depend on the request computed ahead.

The times of the grid, the step lengths and the time embeddings depend on the number of timesteps
alone; the condition's tokens on the step of the language model alone. What is left inside the
loop is the transformer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from voxnative.nn.cfm import euler_times, guide, sway_grid
from voxnative.nn.local_dit import LocalDiT


class FlowPlan:
    """Time embeddings and step lengths of one number of timesteps.

    Args:
        estimator: the velocity network.
        n_timesteps: Euler steps, at least 2.
        device: where the network lives.
        mean_mode: give the network the length of each step instead of 0.

    Raises:
        ParameterError: fewer than 2 timesteps.
    """

    def __init__(
        self, estimator: LocalDiT, n_timesteps: int, device: torch.device, *, mean_mode: bool
    ) -> None:
        self.n_timesteps = n_timesteps
        grid = sway_grid(n_timesteps, device=device)
        self.steps: list[tuple[Tensor, Tensor]] = []  # ([1, H_dit] embedding, [] length)
        for t, dt, stands_still in euler_times(grid):
            if not stands_still:
                given = dt if mean_mode else torch.zeros_like(dt)
                self.steps.append((estimator.embed_time(t.view(1), given.view(1)), dt))


def solve_planned(
    estimator: LocalDiT, plan: FlowPlan, noise: Tensor, *, mu: Tensor, cond: Tensor, cfg: Tensor
) -> Tensor:
    """As `cfm.solve`, along a plan; the state stays in fp32.

    Args:
        estimator: the velocity network.
        plan: its plan for the wanted number of timesteps.
        noise: scaled by the temperature [B, P, D] fp32.
        mu: condition from the language models [B, n_mu * H_dit].
        cond: previous patch [B, P, D].
        cfg: guidance strength of each row [B].

    Returns:
        Patch [B, P, D] fp32.
    """
    B = noise.shape[0]
    dtype = estimator.in_proj.weight.dtype
    mu_tokens = mu.to(dtype).view(B, estimator.n_mu_tokens, -1)
    mu_pair = torch.cat((mu_tokens, torch.zeros_like(mu_tokens)))  # [2B, n_mu, H_dit]
    cond_tokens = estimator.cond_proj(cond.to(dtype))
    cond_pair = torch.cat((cond_tokens, cond_tokens))  # [2B, P, H_dit]
    x = noise
    for time, dt in plan.steps:
        x_tokens = estimator.in_proj(x.to(dtype))
        v = estimator.denoise(torch.cat((x_tokens, x_tokens)), mu_pair, time, cond_pair).float()
        conditional, unconditional = v.chunk(2)
        x = x - dt * guide(conditional, unconditional, cfg)
    return x
