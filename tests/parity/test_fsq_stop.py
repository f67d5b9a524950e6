"""Scalar quantiser and stop head against the reference."""

from __future__ import annotations

import torch
from torch import nn

from tests.parity.compare import assert_parity
from tests.parity.conftest import Pair
from voxnative.checkpoint import iter_lm_tensors, load_module_strict
from voxnative.nn.heads import ScalarQuantizer, StopHead


def load_head(module: nn.Module, pair: Pair, prefix: str, keep: tuple[str, ...]) -> nn.Module:
    """Fill a head from the checkpoint's tensors whose names start with `keep`."""
    tensors = (
        (name.removeprefix(prefix), tensor, file)
        for name, tensor, file in iter_lm_tensors(pair.directory)
        if name.startswith(keep)
    )
    load_module_strict(module, tensors)
    return module


def test_quantiser(pair: Pair, generator: torch.Generator) -> None:
    config = pair.config
    quantiser = ScalarQuantizer(config.lm.hidden_size, config.fsq_latent_dim, config.fsq_scale)
    load_head(quantiser, pair, "fsq_layer.", ("fsq_layer.",))
    hidden = torch.randn(50, config.lm.hidden_size, generator=generator)
    ours = quantiser(hidden)
    assert_parity("FSQ", ours, pair.theirs.fsq_layer(hidden), max_abs=1e-6)
    assert not torch.equal(ours[0], quantiser(hidden * 1.5)[0])


def test_stop_head(pair: Pair, generator: torch.Generator) -> None:
    head = load_head(StopHead(pair.config.lm.hidden_size), pair, "", ("stop_",))
    hidden = torch.randn(50, pair.config.lm.hidden_size, generator=generator)
    model = pair.theirs
    theirs = model.stop_head(model.stop_actn(model.stop_proj(hidden)))
    assert_parity("stop logits", head(hidden), theirs, max_abs=1e-5)
    assert torch.equal(head(hidden).argmax(-1), theirs.argmax(-1))
