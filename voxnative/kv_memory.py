"""KV memory of a checkpoint: keys and values of every base and residual layer."""

from __future__ import annotations

from voxnative.config import VoxConfig

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def kv_bytes_per_position(config: VoxConfig, dtype: str, n_ranks: int = 1) -> int:
    """Bytes that one position of one request takes in the paged cache of one rank.

    Args:
        config: of the checkpoint.
        dtype: of the cache, "float32", "bfloat16" or "float16".
        n_ranks: tensor-parallel ranks, which share the KV heads; where they are more than the
            heads, each rank still holds one.
    """
    n_layers = config.lm.num_hidden_layers + config.residual_lm.num_hidden_layers
    n_kv_heads = max(1, config.lm.num_key_value_heads // n_ranks)
    return 2 * n_layers * n_kv_heads * config.lm.head_dim * DTYPE_BYTES[dtype]
