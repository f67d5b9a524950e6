"""MiniCPM4 decoder stack under PagedAttention, with vLLM's tensor-parallel layers."""

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)

from voxnative.config import LMConfig
from voxnative.nn.rope import apply_rope, rope_tables


class PagedSelfAttention(nn.Module):
    """Grouped-query attention over the paged KV cache; RoPE only where tables are given."""

    def __init__(self, config: LMConfig, vllm_config: VllmConfig, layer: int, prefix: str) -> None:
        super().__init__()
        quant = vllm_config.quant_config
        tp = get_tensor_model_parallel_world_size()
        self.head_dim = config.head_dim
        self.n_heads = config.num_attention_heads // tp
        self.n_kv_heads = max(1, config.num_key_value_heads // tp)
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            config.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            bias=False,
            quant_config=quant,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * config.head_dim,
            config.hidden_size,
            bias=False,
            quant_config=quant,
            prefix=f"{prefix}.o_proj",
        )
        # vLLM reads the layer's index from this name: exactly one integer, unique over
        # base and residual layers, which share one KV-cache group.
        self.attn = Attention(
            self.n_heads,
            self.head_dim,
            self.head_dim**-0.5,
            num_kv_heads=self.n_kv_heads,
            cache_config=vllm_config.cache_config,
            quant_config=quant,
            prefix=f"layers.{layer}.attn",
        )

    def forward(
        self, hidden: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor] | None
    ) -> torch.Tensor:
        qkv, _ = self.qkv_proj(hidden)
        n = hidden.shape[0]
        kv_size = self.n_kv_heads * self.head_dim
        sizes = [self.n_heads * self.head_dim, kv_size, kv_size]
        if qkv.is_cuda:
            if rope is not None:
                from voxnative.nn.rope_kernel import rotate_in_place

                rotate_in_place(qkv, *rope, self.n_heads + self.n_kv_heads, self.head_dim)
            out, _ = self.o_proj(self.attn(*qkv.split(sizes, dim=-1)))
            return out
        q, k, v = qkv.split(sizes, dim=-1)
        if rope is not None:
            cos, sin = rope
            q = apply_rope(q.view(n, self.n_heads, self.head_dim), cos, sin).flatten(1)
            k = apply_rope(k.view(n, self.n_kv_heads, self.head_dim), cos, sin).flatten(1)
        out, _ = self.o_proj(self.attn(q.contiguous(), k.contiguous(), v.contiguous()))
        return out


class GatedMLP(nn.Module):
    """SiLU-gated feed-forward block."""

    def __init__(self, config: LMConfig, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        quant = vllm_config.quant_config
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size,
            [config.intermediate_size] * 2,
            bias=False,
            quant_config=quant,
            prefix=f"{prefix}.gate_up_proj",
        )
        self.down_proj = RowParallelLinear(
            config.intermediate_size,
            config.hidden_size,
            bias=False,
            quant_config=quant,
            prefix=f"{prefix}.down_proj",
        )
        self.act = SiluAndMul()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        gate_up, _ = self.gate_up_proj(hidden)
        out, _ = self.down_proj(self.act(gate_up))
        return out


class PagedDecoderLayer(nn.Module):
    """Pre-norm decoder layer; muP scales both branches by ``scale_depth / sqrt(layers)``."""

    def __init__(self, config: LMConfig, vllm_config: VllmConfig, layer: int, prefix: str) -> None:
        super().__init__()
        self.branch_scale = config.branch_scale
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = PagedSelfAttention(config, vllm_config, layer, f"{prefix}.self_attn")
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = GatedMLP(config, vllm_config, f"{prefix}.mlp")

    def forward(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Branch that is not added yet and the stream before it -> the same behind the layer.

        The addition belongs to the next norm, which vLLM runs as one kernel with it.
        """
        normed, residual = self.input_layernorm(hidden, residual)
        hidden = self._scaled(self.self_attn(normed, rope))
        normed, residual = self.post_attention_layernorm(hidden, residual)
        return self._scaled(self.mlp(normed)), residual

    def _scaled(self, branch: torch.Tensor) -> torch.Tensor:
        return branch if self.branch_scale == 1.0 else self.branch_scale * branch


class PagedLM(nn.Module):
    """Decoder stack without embedding: ``[n_tokens, hidden] -> [n_tokens, hidden]``.

    Args:
        config: sizes of this stack (base or residual LM).
        vllm_config: vLLM's configuration (cache, quantisation).
        first_layer: index of its first attention layer over all stacks of the model.
        prefix: module path, for vLLM's quantisation configuration.

    Source: voxcpm/modules/minicpm4/model.py, ``MiniCPMModel``.
    """

    def __init__(
        self, config: LMConfig, vllm_config: VllmConfig, first_layer: int, prefix: str
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            PagedDecoderLayer(config, vllm_config, first_layer + i, f"{prefix}.layers.{i}")
            for i in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.cos: torch.Tensor | None
        self.sin: torch.Tensor | None
        if config.no_rope:
            self.cos = self.sin = None
        else:
            n_positions = vllm_config.model_config.max_model_len
            device = torch.get_default_device()
            cos, sin = rope_tables(config, n_positions, device)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Run the stack.

        Args:
            hidden: ``[n_tokens, hidden]`` input embeddings.
            positions: ``[n_tokens]`` int64 positions inside each request.
        """
        rope = None
        if self.cos is not None and self.sin is not None:
            rope = self.cos[positions], self.sin[positions]
        # The norms add in place: the caller's embeddings must stay what they are.
        hidden, residual = torch.zeros_like(hidden), hidden.clone()
        for layer in self.layers:
            hidden, residual = layer(hidden, residual, rope)
        hidden, _ = self.norm(hidden, residual)
        return hidden
