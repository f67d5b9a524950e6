"""Sizes of one MiniCPM4 transformer, from `lm_config` or the section of a network over a patch.

Source: voxcpm/modules/minicpm4/config.py `MiniCPM4Config`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from voxnative.config_section import Section


@dataclass(frozen=True)
class LMConfig:
    """One MiniCPM4 transformer: base LM, residual LM, local encoder or local DiT."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int  # `kv_channels`; hidden_size / heads only where the checkpoint has no such key
    vocab_size: int  # 0: no embedding table
    rms_norm_eps: float
    rope_theta: float
    rope_short_factor: tuple[float, ...] = field(repr=False)  # [head_dim / 2]
    rope_long_factor: tuple[float, ...] = field(repr=False)  # [head_dim / 2]
    rope_original_max_position: int
    max_position_embeddings: int
    use_mup: bool  # scale embeddings by scale_emb, branches by scale_depth / sqrt(layers)
    scale_emb: float
    dim_model_base: int
    scale_depth: float
    bos_token_id: int
    eos_token_id: int
    no_rope: bool

    @property
    def branch_scale(self) -> float:
        """Factor on every attention and MLP branch before it joins the residual stream."""
        return self.scale_depth / math.sqrt(self.num_hidden_layers) if self.use_mup else 1.0

    @property
    def embedding_scale(self) -> float:
        """Factor on text token embeddings."""
        return self.scale_emb if self.use_mup else 1.0


def read_lm(s: Section) -> LMConfig:
    """The base LM, from `lm_config`."""
    rope = s.section("rope_scaling")
    rope.choice("type", ("longrope",))
    heads, hidden = s.integer("num_attention_heads"), s.integer("hidden_size")
    config = LMConfig(
        hidden_size=hidden,
        intermediate_size=s.integer("intermediate_size"),
        num_hidden_layers=s.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=s.integer("num_key_value_heads"),
        head_dim=s.optional_integer("kv_channels") or hidden // heads,
        vocab_size=s.integer("vocab_size"),
        rms_norm_eps=s.number("rms_norm_eps"),
        rope_theta=s.number("rope_theta"),
        rope_short_factor=rope.numbers("short_factor"),
        rope_long_factor=rope.numbers("long_factor"),
        rope_original_max_position=rope.integer("original_max_position_embeddings"),
        max_position_embeddings=s.integer("max_position_embeddings"),
        use_mup=s.flag("use_mup", True),
        scale_emb=s.number("scale_emb"),
        dim_model_base=s.integer("dim_model_base"),
        scale_depth=s.number("scale_depth"),
        bos_token_id=s.integer("bos_token_id", minimum=0),
        eos_token_id=s.integer("eos_token_id", minimum=0),
        no_rope=s.flag("no_rope", False),
    )
    s.ignore("model_type", "architectures", "torch_dtype")
    rope.finish()
    s.finish()
    _check_heads(s, config, "num_attention_heads")
    return config


def read_local(s: Section, lm: LMConfig) -> LMConfig:
    """A network over one patch: its own sizes, everything else as in the base LM.

    The section is left open: a family may have further keys in it.
    """
    hidden, heads = s.integer("hidden_dim", 1024), s.integer("num_heads", 16)
    config = replace(
        lm,
        hidden_size=hidden,
        intermediate_size=s.integer("ffn_dim", 4096),
        num_attention_heads=heads,
        num_hidden_layers=s.integer("num_layers", 4),
        head_dim=s.optional_integer("kv_channels") or hidden // heads,
        vocab_size=0,
    )
    _check_heads(s, config, "num_heads")
    return config


def _check_heads(s: Section, config: LMConfig, heads_key: str) -> None:
    if config.num_attention_heads % config.num_key_value_heads:
        raise s.error(
            heads_key,
            config.num_attention_heads,
            f"a multiple of lm_config.num_key_value_heads, {config.num_key_value_heads}",
        )
    for factor in (config.rope_short_factor, config.rope_long_factor):
        if not config.no_rope and 2 * len(factor) != config.head_dim:
            raise s.error(
                "kv_channels",
                config.head_dim,
                f"{2 * len(factor)}, twice the number of rope_scaling factors",
            )
