"""The local transformers for inference: fewer, larger products, made from loaded modules.

A layer's query, key and value weights become one matrix, gate and up another; each projection
then is one product. What stands between the products runs in plain torch, or in the Triton
kernels of ``local_kernels`` on a GPU, where a step of a few rows costs little but launches. The
last layer runs its MLP on the wanted tokens only.
LoRA adapters add to the products' outputs; where none may come, nothing is added to the work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxnative.nn.blocks import TransformerLayer, TransformerStack
from voxnative.nn.fp8_linear import Fp8Weight, quantize_rows
from voxnative.nn.fused_lora import fused_low_rank
from voxnative.nn.rope import apply_rope
from voxnative.nn.speech_nets import SpeechNets


class FusedLayer(nn.Module):
    """One layer of a local transformer on folded weights.

    Args:
        layer: the loaded layer; its weights are copied, not kept.
        fp8: hold the four matrices in 8-bit floats, a scale for each output row.
    """

    def __init__(self, layer: TransformerLayer, *, fp8: bool = False) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.head_dim = attention.head_dim
        self.n_heads = attention.q_proj.weight.shape[0] // self.head_dim
        self.n_kv_heads = attention.k_proj.weight.shape[0] // self.head_dim
        self.branch_scale = layer.branch_scale
        self.eps = layer.input_layernorm.eps
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.register_buffer("attention_gain", layer.input_layernorm.weight.detach().clone())
        self.register_buffer("mlp_gain", layer.post_attention_layernorm.weight.detach().clone())
        matrices = {
            "qkv": torch.cat([p.weight.detach() for p in projections]),  # [(q + 2 kv) * hd, H]
            "out": attention.o_proj.weight.detach().clone(),  # [H, q * hd]
            "gate_up": torch.cat((mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach())),
            "down": mlp.down_proj.weight.detach().clone(),  # [H, F]
        }
        self.fp8: dict[str, Fp8Weight] = {}
        for name, matrix in matrices.items():
            if fp8:
                self.fp8[name] = quantize_rows(matrix)
                self.register_buffer(name, None)
            else:
                self.register_buffer(name, matrix)
        self.attention_gain: Tensor  # [H]
        self.mlp_gain: Tensor  # [H]
        self.low_rank = fused_low_rank(
            {
                "qkv": projections,
                "out": (attention.o_proj,),
                "gate_up": (mlp.gate_proj, mlp.up_proj),
                "down": (mlp.down_proj,),
            }
        )

    def product(self, name: str, x: Tensor, T: int) -> Tensor:
        """x [B * T, K] times one of the four matrices, with the rows' adapters: [B * T, N]."""
        quantised = self.fp8.get(name)
        y = F.linear(x, getattr(self, name)) if quantised is None else quantised.product(x)
        low_rank = self.low_rank.get(name)
        if low_rank is not None:
            low_rank.add(y, x, T)
        return y

    def forward(
        self,
        x: Tensor,
        T: int,
        rope: tuple[Tensor, Tensor] | None,
        n_last: int,
        *,
        owns_input: bool = False,
    ) -> Tensor:
        """One layer over sequences of T tokens.

        Args:
            x: [B * T, H].
            T: tokens of a sequence.
            rope: cosines and sines [T, head_dim], or None.
            n_last: tokens at the end of each sequence that are wanted.
            owns_input: x may be written over.

        Returns:
            [B * n_last, H].
        """
        del owns_input  # of use to layers that add in place
        attended = self.attend(self.product("qkv", self.norm(x, self.attention_gain), T), T, rope)
        if n_last < T:
            x, attended = last_rows(x, T, n_last), last_rows(attended, T, n_last)
        x = torch.add(x, self.product("out", attended, n_last), alpha=self.branch_scale)
        gate, up = self.product("gate_up", self.norm(x, self.mlp_gain), n_last).chunk(2, dim=-1)
        branch = self.product("down", F.silu(gate) * up, n_last)
        return torch.add(x, branch, alpha=self.branch_scale)

    def norm(self, x: Tensor, gain: Tensor) -> Tensor:
        """RMS norm with the statistics in fp32, as `blocks.RMSNorm`."""
        variance = x.float().pow(2).mean(dim=-1, keepdim=True)
        return (x * torch.rsqrt(variance + self.eps)).to(x.dtype) * gain

    def attend(self, qkv: Tensor, T: int, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        """Rotate and attend within each sequence; [B * T, (q + 2 kv) * hd] -> [B * T, q * hd]."""
        heads = qkv.view(-1, T, self.n_heads + 2 * self.n_kv_heads, self.head_dim)
        q, k, v = heads.split((self.n_heads, self.n_kv_heads, self.n_kv_heads), dim=2)
        if rope is not None:
            q, k = apply_rope(q, *rope), apply_rope(k, *rope)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), enable_gqa=True
        )  # [B, heads, T, hd]
        return mixed.transpose(1, 2).reshape(qkv.shape[0], -1)


def last_rows(x: Tensor, T: int, n_last: int) -> Tensor:
    """Rows of the last tokens of each sequence: [B * T, N] -> a copy [B * n_last, N]."""
    return x.view(-1, T, x.shape[1])[:, T - n_last :].reshape(-1, x.shape[1])


class FusedStack(nn.Module):
    """As `blocks.TransformerStack`, of fused layers.

    Args:
        stack: the loaded stack.
        kernels: run the Triton kernels of ``local_kernels`` (CUDA).
        fp8: weights in 8-bit floats.
        batch_invariant: see `fused_kernels.KernelLayer`; takes `kernels`.
    """

    def __init__(
        self,
        stack: TransformerStack,
        *,
        kernels: bool,
        fp8: bool = False,
        batch_invariant: bool = False,
    ) -> None:
        super().__init__()
        assert kernels or not batch_invariant
        make: Callable[..., FusedLayer] = FusedLayer
        if kernels:
            from voxnative.nn.fused_kernels import KernelLayer

            make = partial(KernelLayer, batch_invariant=batch_invariant)
        layers: Any = stack.layers
        self.layers = nn.ModuleList(make(layer, fp8=fp8) for layer in layers)
        self.norm = stack.norm
        self.kernels = kernels
        self.register_buffer("cos", stack.cos, persistent=False)
        self.register_buffer("sin", stack.sin, persistent=False)
        self.cos: Tensor | None
        self.sin: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, H] -> [B, T, H], every position seeing every other."""
        return self.last(x, x.shape[1])

    def last(self, x: Tensor, n_last: int) -> Tensor:
        """As `forward`, of the last positions alone [B, n_last, H]; x stays as it is."""
        B, T, H = x.shape
        rope = None if self.cos is None or self.sin is None else (self.cos[:T], self.sin[:T])
        flat = x.reshape(B * T, H)
        for i, layer in enumerate(self.layers):
            n = n_last if i == len(self.layers) - 1 else T
            flat = layer(flat, T, rope, n, owns_input=i > 0)
        if self.kernels:
            from voxnative.nn.local_kernels import rms_norm

            normed = rms_norm(flat, self.norm.weight, self.norm.eps)
        else:
            normed = self.norm(flat)
        return normed.view(B, n_last, H)


def fuse_local_networks(
    nets: SpeechNets, *, kernels: bool, fp8: bool = False, batch_invariant: bool = False
) -> None:
    """Replace both local transformers of loaded networks by fused ones; once.

    Args:
        nets: loaded, on their device.
        kernels: run Triton kernels between and in the products.
        fp8: weights of the DiT (not of the encoder) in 8-bit floats.
        batch_invariant: see `fused_kernels.KernelLayer`; takes `kernels`.
    """
    forms: dict[str, Any] = {"kernels": kernels, "batch_invariant": batch_invariant}
    estimator: Any = nets.feat_decoder.estimator
    estimator.decoder = FusedStack(estimator.decoder, fp8=fp8, **forms)
    encoder: Any = nets.feat_encoder
    encoder.encoder = FusedStack(encoder.encoder, **forms)
    nets.requires_grad_(False)


def compile_local_networks(nets: SpeechNets) -> None:
    """Run the layers of fused networks through `torch.compile`: one layer's code serves all."""
    for stack in (nets.feat_decoder.estimator.decoder, nets.feat_encoder.encoder):
        for layer in stack.layers:
            layer.compile(dynamic=True)
