"""One comparison for all parity tests: the difference is shown, then bounded."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_parity(what: str, ours: Tensor, theirs: Tensor, *, max_abs: float) -> None:
    """Print the largest and the mean absolute difference, and bound the largest."""
    assert ours.shape == theirs.shape, (what, ours.shape, theirs.shape)
    assert torch.isfinite(ours).all(), what
    assert theirs.std() > 1e-3, f"{what}: the reference's output is constant, nothing is compared"
    difference = (ours - theirs).abs()
    print(f"{what}: max {difference.max():.2e}, mean {difference.mean():.2e} (bound {max_abs:.0e})")
    assert difference.max() < max_abs, what
