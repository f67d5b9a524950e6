"""Bytes and FLOPs by part, against the shipped checkpoint's own tensors and torch's counter."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.checkpoints import TRAINED_TINY, load_speech_nets
from voxnative.bench.part_costs import N_MU_TOKENS, stack_weights, step_costs
from voxnative.config import VoxConfig

ROWS, PASSES = 3, 9


def costs(config: VoxConfig) -> dict:
    return step_costs(
        config,
        n_rows=ROWS,
        context=100.0,
        dtype_bytes=4,
        dit_passes=PASSES,
        vae_weights=10,
        vae_state=7,
        vae_flops=5.0,
    )


def test_weights_are_those_of_the_networks(tiny_config: VoxConfig) -> None:
    nets = load_speech_nets(TRAINED_TINY)
    for stack, cfg in (
        (nets.feat_decoder.estimator.decoder, tiny_config.dit),
        (nets.feat_encoder.encoder, tiny_config.encoder),
    ):
        matrices = sum(p.numel() for p in stack.parameters() if p.ndim == 2)
        assert stack_weights(cfg) == matrices


def test_flops_of_the_dit_are_what_torch_counts(tiny_config: VoxConfig) -> None:
    """Up to the projections in and out of the stack, which are left out, and the attention."""
    dit = load_speech_nets(TRAINED_TINY).feat_decoder.estimator
    P, D, H = tiny_config.patch_size, tiny_config.feat_dim, tiny_config.dit.hidden_size
    x, cond = torch.zeros(2, 2 * ROWS, P, D)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        dit(x, torch.zeros(2 * ROWS, 2 * H), torch.zeros(2 * ROWS), torch.zeros(2 * ROWS), cond)
    assert costs(tiny_config)["dit"].n_flops / PASSES == pytest.approx(
        counter.get_total_flops(), rel=0.12
    )


def test_bytes_grow_with_context_and_rows(tiny_config: VoxConfig) -> None:
    lm = tiny_config.lm
    kv = 2 * lm.num_hidden_layers * lm.num_key_value_heads * lm.head_dim * 100 * ROWS
    found = costs(tiny_config)
    assert found["base_lm"].n_bytes == 4 * (stack_weights(lm) + kv)
    assert found["dit"].n_bytes == 4 * PASSES * stack_weights(tiny_config.dit)
    assert found["vae_decoder"].n_bytes == 4 * (10 + 2 * ROWS * 7)
    assert found["vae_decoder"].n_flops == 5.0
    n_tokens = N_MU_TOKENS + 1 + 2 * tiny_config.patch_size
    assert found["dit"].n_flops > 2.0 * PASSES * 2 * ROWS * n_tokens * stack_weights(
        tiny_config.dit
    )
