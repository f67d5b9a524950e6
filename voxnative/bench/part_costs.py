"""Bytes and FLOPs of one decode step by part, from a checkpoint's sizes.

Bytes are the least that a step has to move: every weight once a pass, the KV cache of the context
once, the VAE's state once each way. Activations are left out. FLOPs are those of matrix products
and attention; norms, activations and rotations are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from voxnative.config import LMConfig, VoxConfig

N_MU_TOKENS = 2
VAE_BYTES = 4  # the VAE runs in float32 everywhere


@dataclass(frozen=True)
class Cost:
    """Of one step of a whole batch."""

    n_bytes: float
    n_flops: float


def step_costs(
    config: VoxConfig,
    *,
    n_rows: int,
    context: float,
    dtype_bytes: int,
    dit_passes: int,
    vae_weights: int,
    vae_state: int,
    vae_flops: float,
) -> dict[str, Cost]:
    """Costs by part.

    Args:
        config: the checkpoint's sizes.
        n_rows: requests in the batch.
        context: positions of KV cache a request has, on average.
        dtype_bytes: of a weight and of a cached value, the VAE's apart.
        dit_passes: evaluations of the velocity network a step.
        vae_weights: parameters of the VAE's decoder.
        vae_state: values that a request carries from one patch to the next.
        vae_flops: of the decoder for the whole batch, counted as it runs.
    """

    def lm(cfg: LMConfig) -> Cost:
        weights = stack_weights(cfg)
        kv = 2 * cfg.num_hidden_layers * cfg.num_key_value_heads * cfg.head_dim * context
        attention = 4 * cfg.num_hidden_layers * cfg.num_attention_heads * cfg.head_dim * context
        return Cost(dtype_bytes * (weights + n_rows * kv), n_rows * (2.0 * weights + attention))

    def short(cfg: LMConfig, n_tokens: int, n_sequences: int, n_passes: int) -> Cost:
        """Bidirectional stack over a sequence of a few tokens, without a cache."""
        weights = stack_weights(cfg)
        attention = 4 * cfg.num_hidden_layers * cfg.num_attention_heads * cfg.head_dim * n_tokens
        flops = n_passes * n_sequences * n_tokens * (2.0 * weights + attention)
        return Cost(float(dtype_bytes * weights * n_passes), flops)

    P = config.patch_size
    return {
        "base_lm": lm(config.lm),
        "residual_lm": lm(config.residual_lm),
        "dit": short(config.dit, N_MU_TOKENS + 1 + 2 * P, 2 * n_rows, dit_passes),
        "local_encoder": short(config.encoder, 1 + P, n_rows, 1),
        "vae_decoder": Cost(
            float(VAE_BYTES * (vae_weights + 2 * n_rows * vae_state)), float(vae_flops)
        ),
    }


def stack_weights(cfg: LMConfig) -> int:
    """Weights of a transformer stack's matrices."""
    q, kv = cfg.num_attention_heads * cfg.head_dim, cfg.num_key_value_heads * cfg.head_dim
    attention = cfg.hidden_size * (q + 2 * kv) + q * cfg.hidden_size
    return cfg.num_hidden_layers * (attention + 3 * cfg.hidden_size * cfg.intermediate_size)
