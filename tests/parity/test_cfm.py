"""The flow solver against the reference's, and its grid and update against diffusers."""

from __future__ import annotations

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor

from tests.parity.compare import assert_parity
from tests.parity.conftest import Pair
from voxnative.nn.cfm import guide, solve, sway_grid


def flow_inputs(pair: Pair, generator: torch.Generator, n_rows: int) -> dict[str, Tensor]:
    shape = (n_rows, pair.config.patch_size, pair.config.feat_dim)
    return {
        "noise": torch.randn(shape, generator=generator),
        "mu": torch.randn(n_rows, pair.config.mu_size, generator=generator),
        "cond": torch.randn(shape, generator=generator),
    }


def solve_ours(pair: Pair, timesteps: int, cfg: Tensor, **inputs: Tensor) -> Tensor:
    velocity = pair.ours.feat_decoder.estimator
    noise = inputs.pop("noise")
    return solve(velocity, noise, sway_grid(timesteps), cfg=cfg, **inputs)


def solve_theirs(
    pair: Pair, timesteps: int, cfg: float, noise: Tensor, mu: Tensor, cond: Tensor
) -> Tensor:
    return pair.theirs.feat_decoder.solve_euler(
        x=noise.transpose(1, 2),
        t_span=sway_grid(timesteps),
        mu=mu,
        cond=cond.transpose(1, 2),
        cfg_value=cfg,
    ).transpose(1, 2)


@pytest.mark.parametrize("cfg", [1.0, 2.0, 3.5])
@pytest.mark.parametrize("timesteps", [2, 5, 10, 50])  # at 50 points the first two steps stand
def test_solution(pair: Pair, generator: torch.Generator, timesteps: int, cfg: float) -> None:
    inputs = flow_inputs(pair, generator, n_rows=2)
    ours = solve_ours(pair, timesteps, torch.full((2,), cfg), **inputs)
    theirs = solve_theirs(pair, timesteps, cfg, **inputs)
    assert_parity(f"CFM, {timesteps} steps, cfg {cfg}", ours, theirs, max_abs=2e-5)
    moved = (ours - inputs["noise"]).abs().mean()
    assert moved > 0.05, "the flow stands still: nothing is compared"


def test_each_row_has_its_own_cfg(pair: Pair, generator: torch.Generator) -> None:
    inputs = flow_inputs(pair, generator, n_rows=3)
    cfg = [1.0, 2.0, 4.0]
    together = solve_ours(pair, 10, torch.tensor(cfg), **inputs)
    for row, value in enumerate(cfg):
        alone = {name: tensor[row : row + 1] for name, tensor in inputs.items()}
        theirs = solve_theirs(pair, 10, value, **alone)
        assert_parity(f"row with cfg {value}", together[row : row + 1], theirs, max_abs=2e-5)


def test_mean_mode_gives_the_network_the_step(pair: Pair, generator: torch.Generator) -> None:
    inputs = flow_inputs(pair, generator, n_rows=2)
    flow = pair.theirs.feat_decoder
    flow.mean_mode = True
    try:
        theirs = solve_theirs(pair, 6, 2.0, **inputs)
    finally:
        flow.mean_mode = False
    ours = solve(
        pair.ours.feat_decoder.estimator,
        inputs["noise"],
        sway_grid(6),
        mu=inputs["mu"],
        cond=inputs["cond"],
        cfg=torch.full((2,), 2.0),
        mean_mode=True,
    )
    assert_parity("CFM in mean mode", ours, theirs, max_abs=2e-5)
    assert (ours - solve_ours(pair, 6, torch.full((2,), 2.0), **inputs)).abs().max() > 1e-3


@pytest.mark.parametrize("timesteps", [2, 3, 10, 33, 100])
def test_grid_is_the_reference_s(pair: Pair, timesteps: int) -> None:
    """The grid the reference makes inside `forward`, caught on its way to the solver."""
    flow = pair.theirs.feat_decoder
    caught: list[Tensor] = []

    class Caught(Exception):
        pass

    def catch(*, t_span: Tensor, **_: object) -> Tensor:
        caught.append(t_span)
        raise Caught

    flow.solve_euler = catch
    try:
        with pytest.raises(Caught):
            flow(
                mu=torch.zeros(1, 2),
                n_timesteps=timesteps,
                patch_size=pair.config.patch_size,
                cond=torch.zeros(1),
            )
    finally:
        del flow.solve_euler
    assert torch.equal(sway_grid(timesteps), caught[0].clone())


@pytest.mark.parametrize("timesteps", [2, 10, 25])
def test_steps_are_diffusers_flow_matching_euler(pair: Pair, timesteps: int) -> None:
    """The same sigmas, and each `.step` of the scheduler is one step of our solver."""
    generator = torch.Generator().manual_seed(timesteps)
    inputs = flow_inputs(pair, generator, n_rows=2)
    grid, cfg = sway_grid(timesteps), torch.tensor([2.0, 1.5])
    scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
    scheduler.set_timesteps(sigmas=grid[:-1].numpy())
    assert_parity("sigmas", scheduler.sigmas, grid, max_abs=1e-6)
    assert_parity("timesteps", scheduler.timesteps / 1000, grid[:-1], max_abs=1e-6)

    network = pair.ours.feat_decoder.estimator
    mu = torch.cat((inputs["mu"], torch.zeros_like(inputs["mu"])))
    x = inputs["noise"]
    for step, t in enumerate(scheduler.timesteps):
        velocity = torch.zeros_like(x)
        if step > 0 and step >= int(len(grid) * 0.04):
            times = (t / 1000).expand(4)
            both = network(
                torch.cat((x, x)), mu, times, torch.zeros(4), torch.cat([inputs["cond"]] * 2)
            )
            conditional, unconditional = both.chunk(2)
            velocity = guide(conditional, unconditional, cfg)
        x = scheduler.step(velocity, t, x).prev_sample
    assert_parity("diffusers' loop", solve_ours(pair, timesteps, cfg, **inputs), x, max_abs=2e-5)
