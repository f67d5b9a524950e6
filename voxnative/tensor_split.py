"""Over how many tensor-parallel ranks a checkpoint's language models can be split."""

from __future__ import annotations

from voxnative.config import VoxConfig


def possible_splits(config: VoxConfig) -> list[int]:
    """Numbers of ranks that the sizes allow, ascending; 1 is always among them."""
    return [n for n in range(1, config.lm.num_attention_heads + 1) if _divides(config, n)]


def check_split(config: VoxConfig, n_ranks: int) -> None:
    """Refuse a number of ranks that would need parts of a head or of a column.

    Attention heads and the width of the feed-forward block are divided; KV heads are divided or,
    where they are fewer than the ranks, repeated. Everything behind the language models is
    whole on every rank.

    Raises:
        ValueError: names the sizes and what is valid.
    """
    if _divides(config, n_ranks):
        return
    lm = config.lm
    raise ValueError(
        f"tensor_parallel_size={n_ranks} is not valid with this checkpoint: its "
        f"{lm.num_attention_heads} attention heads, {lm.num_key_value_heads} KV heads and "
        f"feed-forward width of {lm.intermediate_size} cannot be split evenly; "
        f"valid: {', '.join(map(str, possible_splits(config)))}"
    )


def _divides(config: VoxConfig, n_ranks: int) -> bool:
    n_kv_heads = config.lm.num_key_value_heads
    kv_fits = n_kv_heads % n_ranks == 0 or n_ranks % n_kv_heads == 0
    sizes = [config.lm.num_attention_heads]
    sizes += [lm.intermediate_size for lm in (config.lm, config.residual_lm)]
    return kv_fits and all(size % n_ranks == 0 for size in sizes)
