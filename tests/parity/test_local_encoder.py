"""LocEnc and its projection against the reference."""

from __future__ import annotations

import pytest
import torch

from tests.parity.compare import assert_parity
from tests.parity.conftest import Pair


@pytest.mark.parametrize("n_patches", [1, 7])
def test_patch_embeddings(pair: Pair, generator: torch.Generator, n_patches: int) -> None:
    patches = torch.randn(
        n_patches, pair.config.patch_size, pair.config.feat_dim, generator=generator
    )
    theirs = pair.theirs.feat_encoder(patches.unsqueeze(0))
    assert_parity("LocEnc", pair.ours.feat_encoder(patches), theirs[0], max_abs=1e-5)
    assert_parity(
        "LocEnc + projection",
        pair.ours.embed_patches(patches),
        pair.theirs.enc_to_lm_proj(theirs)[0],
        max_abs=1e-5,
    )
