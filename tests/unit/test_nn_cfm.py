"""The flow solver on velocities whose solution is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from voxnative.config import VoxConfig
from voxnative.errors import ParameterError
from voxnative.nn.cfm import guide, solve, sway_grid
from voxnative.nn.local_dit import LocalDiT

B, P, D, M = 3, 4, 8, 6


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "noise": torch.randn(B, P, D, generator=generator),
        "mu": torch.randn(B, M, generator=generator),
        "cond": torch.randn(B, P, D, generator=generator),
    }


def run(velocity: object, inputs: dict[str, Tensor], timesteps: int, **changed: Tensor) -> Tensor:
    """Solve on the sway grid with cfg 1 unless changed."""
    given = {**inputs, "cfg": torch.ones(B), **changed}
    noise = given.pop("noise")
    return solve(velocity, noise, sway_grid(timesteps), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("timesteps", [2, 3, 10, 100])
def test_grid_falls_from_one_to_zero(timesteps: int) -> None:
    grid = sway_grid(timesteps)
    assert grid.shape == (timesteps + 1,)
    assert grid[0].item() == pytest.approx(1.0, abs=1e-6)
    assert grid[-1].item() == pytest.approx(0.0, abs=1e-6)
    steps = -grid.diff()
    assert (steps > 0).all()
    assert (steps.diff() > 0).all()  # shorter near the noise


@pytest.mark.parametrize("timesteps", [1, 0, -3])
def test_fewer_than_two_timesteps_are_refused(timesteps: int) -> None:
    with pytest.raises(ParameterError, match=r"'timesteps': .* valid: 2 or more"):
        sway_grid(timesteps)


@pytest.mark.parametrize("timesteps", [2, 10])
def test_constant_velocity_is_followed_from_the_second_point(
    inputs: dict[str, Tensor], timesteps: int
) -> None:
    constant = torch.randn(B, P, D)

    def velocity(x: Tensor, mu: Tensor, t: Tensor, dt: Tensor, cond: Tensor) -> Tensor:
        return torch.cat((constant, constant))

    travelled = sway_grid(timesteps)[1]  # the first step stands still
    expected = inputs["noise"] - travelled * constant
    assert torch.allclose(run(velocity, inputs, timesteps), expected, atol=1e-5)


def test_what_the_network_is_given(inputs: dict[str, Tensor]) -> None:
    calls: list[tuple[Tensor, ...]] = []

    def velocity(x: Tensor, mu: Tensor, t: Tensor, dt: Tensor, cond: Tensor) -> Tensor:
        calls.append((x, mu, t, dt, cond))
        return torch.zeros_like(x)

    before = {name: tensor.clone() for name, tensor in inputs.items()}
    run(velocity, inputs, 5)
    assert len(calls) == 4
    grid = sway_grid(5)
    for step, (x, mu, t, dt, cond) in enumerate(calls, start=1):
        assert torch.equal(x, torch.cat([inputs["noise"]] * 2))
        assert torch.equal(mu[:B], inputs["mu"])
        assert not mu[B:].any()
        assert torch.allclose(t, grid[step].expand(2 * B), atol=1e-6)
        assert not dt.any()
        assert torch.equal(cond, torch.cat([inputs["cond"]] * 2))
    assert all(torch.equal(inputs[name], tensor) for name, tensor in before.items())


def test_mean_mode_passes_the_step_length(inputs: dict[str, Tensor]) -> None:
    lengths: list[float] = []

    def velocity(x: Tensor, mu: Tensor, t: Tensor, dt: Tensor, cond: Tensor) -> Tensor:
        lengths.append(dt[0].item())
        return torch.zeros_like(x)

    noise, cfg = inputs["noise"], torch.ones(B)
    mu, cond = inputs["mu"], inputs["cond"]
    solve(velocity, noise, sway_grid(5), mu=mu, cond=cond, cfg=cfg, mean_mode=True)
    assert lengths == pytest.approx((-sway_grid(5).diff())[1:].tolist(), abs=1e-6)


def test_guidance() -> None:
    conditional, unconditional = torch.randn(2, B, P, D)
    assert torch.allclose(guide(conditional, unconditional, torch.ones(B)), conditional, atol=1e-6)
    # Along the same line the projection is exact, and no strength changes anything.
    cfg = torch.tensor([0.0, 2.0, 5.0])
    assert torch.allclose(guide(conditional, 3 * conditional, cfg), conditional, atol=1e-4)
    # Strength 0 leaves the projection, orthogonal to the rest.
    base = guide(conditional, unconditional, torch.zeros(B))
    assert (base * (conditional - base)).sum((1, 2)).abs().max() < 1e-3


def test_guidance_without_an_unconditional_velocity_is_finite() -> None:
    conditional = torch.randn(B, P, D)
    guided = guide(conditional, torch.zeros(B, P, D), torch.full((B,), 2.0))
    assert torch.equal(guided, 2 * conditional)


def test_state_keeps_its_dtype_whatever_the_network_computes_in(inputs: dict[str, Tensor]) -> None:
    def velocity(x: Tensor, mu: Tensor, t: Tensor, dt: Tensor, cond: Tensor) -> Tensor:
        return torch.ones_like(x).to(torch.bfloat16)

    patch = run(velocity, inputs, 10)
    assert patch.dtype == torch.float32
    assert torch.allclose(patch, inputs["noise"] - sway_grid(10)[1], atol=1e-5)


def test_solver_and_network_compile_without_graph_breaks(tiny_config: VoxConfig) -> None:
    torch.manual_seed(0)
    patch_size, feat_dim = tiny_config.patch_size, tiny_config.feat_dim
    dit = LocalDiT(tiny_config.dit, feat_dim, patch_size, 2).requires_grad_(False)
    noise, cond = torch.randn(2, 2, patch_size, feat_dim)
    mu, cfg = torch.randn(2, tiny_config.mu_size), torch.tensor([2.0, 3.0])

    def whole(noise: Tensor, mu: Tensor, cond: Tensor, cfg: Tensor) -> Tensor:
        return solve(dit, noise, sway_grid(4), mu=mu, cond=cond, cfg=cfg)

    compiled = torch.compile(whole, backend="eager", fullgraph=True)
    assert torch.equal(compiled(noise, mu, cond, cfg), whole(noise, mu, cond, cfg))
