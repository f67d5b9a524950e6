"""LocDiT and the condition it gets against the reference."""

from __future__ import annotations

import pytest
import torch

from tests.parity.compare import assert_parity
from tests.parity.conftest import Pair


@pytest.mark.parametrize(("t", "dt"), [(1.0, 0.0), (0.9877, 0.0), (0.25, 0.0), (0.5, 0.125)])
def test_velocity(pair: Pair, generator: torch.Generator, t: float, dt: float) -> None:
    B, P, D = 3, pair.config.patch_size, pair.config.feat_dim
    x, cond = torch.randn(2, B, P, D, generator=generator)
    mu = torch.randn(B, pair.config.mu_size, generator=generator)
    times, steps = torch.full((B,), t), torch.full((B,), dt)
    estimator = pair.ours.feat_decoder.estimator
    ours = estimator(x, mu, times, steps, cond)
    theirs = pair.theirs.feat_decoder.estimator(
        x.transpose(1, 2), mu, times, cond.transpose(1, 2), steps
    ).transpose(1, 2)
    assert_parity(f"LocDiT at t={t}, dt={dt}", ours, theirs, max_abs=1e-5)
    once = estimator.embed_time(times[:1], steps[:1]).expand(B, -1)
    assert_parity("time embedded once", estimator.velocity(x, mu, once, cond), ours, max_abs=1e-5)


def test_condition(pair: Pair, generator: torch.Generator) -> None:
    hidden, residual = torch.randn(2, 3, pair.config.lm.hidden_size, generator=generator)
    both = pair.theirs.lm_to_dit_proj(hidden), pair.theirs.res_to_dit_proj(residual)
    theirs = both[0] + both[1] if pair.config.family.n_mu_tokens == 1 else torch.cat(both, dim=-1)
    assert_parity("mu", pair.ours.dit_condition(hidden, residual), theirs, max_abs=1e-5)
