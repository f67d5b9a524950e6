"""The AudioVAE's decoder for inference, on the kernels of ``vae_kernels`` and matrix products.

It takes and returns the same tails as `vae_stream.stream_decode`, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from voxnative.nn.audio_vae import Decoder
from voxnative.nn.vae_kernels import combine_spread, residual_taps, snake_context


@dataclass(frozen=True)
class _Unit:
    """A residual unit; `offset` [C] is what is still to be added to its input."""

    dilation: int
    alpha1: Tensor  # [C]
    alpha2: Tensor  # [C]
    taps: Tensor  # [C, 7]
    taps_bias: Tensor  # [C]
    mix: Tensor  # [C, C], the 1x1 convolution
    offset: Tensor  # [C]


@dataclass(frozen=True)
class _Block:
    """An upsampling block; its input is x * scale + offset."""

    scale: Tensor  # [C_in]
    offset: Tensor  # [C_in]
    alpha: Tensor  # [C_in]
    spread: Tensor  # [C_out * 2 * stride, C_in]
    bias: Tensor  # [C_out]
    stride: int
    units: list[_Unit]


def is_supported(decoder: Decoder) -> bool:
    """Depthwise taps, and rate conditions that scale and shift without a layer behind."""
    units = [module for module in decoder.modules() if type(module).__name__ == "ResidualUnit"]
    conditions: list[Any] = list(decoder.sr_cond_model.values())
    depthwise = all(_part(unit, 1).groups == _part(unit, 1).in_channels for unit in units)
    return depthwise and all(c.scales and not len(c.out_layer) for c in conditions)


def _part(module: Any, index: int) -> Any:
    return module.block[index]


class FusedDecoder:
    """Callable as ``stream_decode(decoder, latents, tails)`` without its first argument.

    Args:
        decoder: loaded, in the wanted dtype; must be supported (`is_supported`).
    """

    def __init__(self, decoder: Decoder) -> None:
        layers: list[Any] = list(decoder.model)
        self.first, widen = layers[0], layers[1]
        self.widen = widen.weight.squeeze(2)  # [C, D]
        scale = torch.ones_like(widen.bias)
        offset = widen.bias
        self.blocks: list[_Block] = []
        for index, layer in enumerate(layers[2:-3], start=2):
            if str(index) in decoder.sr_cond_model:
                condition: Any = decoder.sr_cond_model[str(index)]
                scale = condition.scale_embed.weight[condition.bin_index]
                offset = offset * scale + condition.bias_embed.weight[condition.bin_index]
            self.blocks.append(_fold_block(layer, scale, offset))
            last = self.blocks[-1].units[-1]
            offset = last.offset + _part(layer.block[-1], 3).bias
            scale = torch.ones_like(offset)
        self.last_alpha, self.last = layers[-3].alpha.flatten(), layers[-2]
        self.last_scale, self.last_offset = scale, offset

    def __call__(self, latents: Tensor, tails: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """[B, n_frames, D], one [B, C, pad] a layer -> [B, n_frames * hop], the next tails."""
        B = latents.shape[0]
        old, new = iter(tails), []
        context = torch.cat((next(old), latents.transpose(1, 2)), dim=-1)
        new.append(context[..., -self.first.n_tail :])
        # From here on [C, B, n]: a product reads its weights once for all streams.
        x = _mix(self.widen, self.first.advance(context).transpose(0, 1).contiguous())
        for block in self.blocks:
            n = x.shape[2]
            context = snake_context(
                x, block.scale, block.offset, next(old), block.alpha, by_stream=False
            )
            new.append(context[..., n : n + 1].transpose(0, 1))
            x = combine_spread(_mix(block.spread, context), block.bias, block.stride, n)
            for u in block.units:
                y, tail = residual_taps(
                    x, u.offset, next(old), u.taps, u.taps_bias, u.dilation, u.alpha1, u.alpha2
                )
                new.append(tail)
                x.view(len(x), -1).addmm_(u.mix, y.view(len(y), -1))
        context = snake_context(
            x, self.last_scale, self.last_offset, next(old), self.last_alpha, by_stream=True
        )
        new.append(context[..., -self.last.n_tail :])
        wave = torch.tanh(F.conv1d(context, self.last.weight, self.last.bias))
        return wave.view(B, -1), new


def _mix(weight: Tensor, x: Tensor) -> Tensor:
    """1x1 convolution: [C_out, C_in], [C_in, B, n] -> [C_out, B, n]."""
    return torch.mm(weight, x.view(len(x), -1)).view(len(weight), *x.shape[1:])


def _fold_block(layer: Any, scale: Tensor, offset: Tensor) -> _Block:
    snake, up = layer.block[0], layer.block[1]
    stride = up.stride[0]
    units = []
    pending = torch.zeros_like(up.bias)
    for unit in layer.block[2:]:
        taps, mix = _part(unit, 1), _part(unit, 3)
        units.append(
            _Unit(
                dilation=taps.dilation[0],
                alpha1=_part(unit, 0).alpha.flatten(),
                alpha2=_part(unit, 2).alpha.flatten(),
                taps=taps.weight.squeeze(1).contiguous(),
                taps_bias=taps.bias,
                mix=mix.weight.squeeze(2),
                offset=pending,
            )
        )
        pending = pending + mix.bias
    spread = up.weight.flatten(1).t().contiguous()  # [C_in, C_out, 2 * stride] before
    return _Block(scale, offset, snake.alpha.flatten(), spread, up.bias, stride, units)
