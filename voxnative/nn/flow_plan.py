"""The flow's solver with everything that does not depend on the request computed ahead.

The times of the grid, the step lengths and the time embeddings depend on the number of timesteps
alone; the condition's tokens on the step of the language model alone. What is left inside the
loop is the transformer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from voxnative.nn.cfm import GUIDE_EPS, euler_times, guide, sway_grid
from voxnative.nn.local_dit import LocalDiT
from voxnative.nn.lora import takes_adapters


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
        times, lengths = [], []
        for t, dt, stands_still in euler_times(grid):
            if not stands_still:
                given = dt if mean_mode else torch.zeros_like(dt)
                self.steps.append((estimator.embed_time(t.view(1), given.view(1)), dt))
                times.append(t)
                lengths.append(given)
        self.times, self.lengths = torch.stack(times), torch.stack(lengths)  # [n]
        embedders = estimator.time_mlp, estimator.delta_time_mlp
        self.rows_differ = any(takes_adapters(embedder) for embedder in embedders)

    def steps_of(self, estimator: LocalDiT, n_rows: int) -> list[tuple[Tensor, Tensor]]:
        """Time embedding and length of each step, for a batch of ``n_rows``.

        The embeddings are the rows' own [n_rows, H_dit] where LoRA adapters may change them,
        else one for all [1, H_dit].
        """
        if not self.rows_differ:
            return self.steps
        embedded = estimator.embed_time(self.times, self.lengths, n_rows)  # [n_rows, n, H_dit]
        return [(own, dt) for own, (_, dt) in zip(embedded.unbind(1), self.steps, strict=True)]


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
    B, P, _ = noise.shape
    dtype = estimator.in_proj.weight.dtype
    # [mu, time, cond (P), x (P)] of the conditional rows, then of the unconditional ones; where
    # the condition is one token, the time is added to it.
    n_mu, n_head = estimator.n_mu_tokens, estimator.n_head_tokens
    tokens = noise.new_zeros(2, B, n_head + 2 * P, estimator.hidden_size, dtype=dtype)
    tokens[0, :, :n_mu] = mu.to(dtype).view(B, n_mu, -1)
    tokens[:, :, n_head:-P] = estimator.cond_proj(cond.to(dtype))
    conditions = tokens[:, :, n_head - 1].clone()  # [2, B, H], zero where the time has a token
    euler = _euler_step(estimator)
    x = noise
    for time, dt in plan.steps_of(estimator, B):
        tokens[:, :, n_head - 1] = conditions + time
        tokens[:, :, -P:] = estimator.in_proj(x.to(dtype))
        v = estimator.out_proj(estimator.decoder.last(tokens.flatten(0, 1), P))
        x = euler(v, x, cfg, dt)
    return x


def _euler_step(estimator: LocalDiT) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Velocities of both branches [2B, P, D], state, guidance and step length -> next state."""
    if getattr(estimator.decoder, "kernels", False):
        from voxnative.nn.local_kernels import euler_step

        return lambda v, x, cfg, dt: euler_step(v, x, cfg, dt, GUIDE_EPS)
    return _plain_euler_step


def _plain_euler_step(v: Tensor, x: Tensor, cfg: Tensor, dt: Tensor) -> Tensor:
    conditional, unconditional = v.float().chunk(2)
    return x - dt * guide(conditional, unconditional, cfg)
