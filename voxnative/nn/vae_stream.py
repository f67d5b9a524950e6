"""Streaming decode of the AudioVAE: chunks of latents in, only their own samples out.

The state is an argument: one tail for each causal layer, in the order the decoder runs them,
with a row for each stream. Rows are independent, so streams at different positions share a call,
and a tail of zeros is a stream that has not begun.

Source: voxcpm/modules/audiovae/audio_vae_v2.py `StreamingVAEDecoder`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from voxnative.errors import ParameterError
from voxnative.nn.audio_vae import AudioVAE, Decoder
from voxnative.nn.causal_conv import CausalConv1d, CausalLayer, CausalTransposeConv1d

PRECISIONS = ("fp32", "tf32", "fp16")


def layers_with_tail(vae: AudioVAE) -> list[CausalLayer]:
    """The decoder's layers that look back, in the order they run."""
    return [
        module
        for module in vae.decoder.modules()
        if isinstance(module, CausalConv1d | CausalTransposeConv1d) and module.n_tail
    ]


def init_stream(
    vae: AudioVAE,
    n_slots: int,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """Tails of fresh streams: zeros [n_slots, C_in, n_tail] for each layer with a tail."""
    return [
        torch.zeros(n_slots, layer.in_channels, layer.n_tail, device=device, dtype=dtype)
        for layer in layers_with_tail(vae)
    ]


def decode_chunk(
    vae: AudioVAE, latents: Tensor, tails: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Decode the next frames of each stream.

    Args:
        latents: [B, n_frames, D], the frames that follow those already decoded.
        tails: one [B, C_in, n_tail] a layer, from `init_stream` or the previous call.

    Returns:
        wave: [B, n_frames * hop], the samples of these frames alone.
        new_tails: as `tails`, for the next call.
    """
    return stream_decode(vae.decoder, latents, tails)


def stream_decode(
    decoder: Decoder, latents: Tensor, tails: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """As :func:`decode_chunk`, of a decoder alone."""
    new_tails: list[Tensor] = []

    def run(layer: CausalLayer, x: Tensor) -> Tensor:
        context = torch.cat((tails[len(new_tails)], x), dim=-1)  # [B, C_in, n_tail + n]
        new_tails.append(context[..., -layer.n_tail :])
        return layer.advance(context)

    wave = decoder(latents.transpose(1, 2), run).squeeze(1)
    return wave, new_tails


class StreamDecoder:
    """The decoder in a wanted precision, for a step that owns its tails.

    Args:
        vae: the AudioVAE, fp32.
        precision: "fp32", "tf32" (matrix products on tensor cores, storage fp32) or "fp16" (a
            copy of the decoder in half precision).
        kernels: run Triton kernels between the products, where the decoder's form allows it.

    Raises:
        ParameterError: another precision.
    """

    def __init__(self, vae: AudioVAE, precision: str = "fp32", *, kernels: bool = False) -> None:
        if precision not in PRECISIONS:
            raise ParameterError("vae_precision", precision, ", ".join(PRECISIONS))
        self.precision = precision
        self.dtype = torch.float16 if precision == "fp16" else torch.float32
        decoder = copy.deepcopy(vae.decoder).half() if precision == "fp16" else vae.decoder
        self._run: Callable[[Tensor, list[Tensor]], tuple[Tensor, list[Tensor]]]
        self._run = partial(stream_decode, decoder)
        if kernels:
            from voxnative.nn.fused_vae import FusedDecoder, is_supported

            if is_supported(decoder):
                self._run = FusedDecoder(decoder)

    def decode(self, latents: Tensor, tails: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """As :func:`decode_chunk`; waves are fp32, tails have `dtype`."""
        with self._matrix_precision():
            wave, tails = self._run(latents.to(self.dtype), tails)
        return wave.float(), tails

    @contextmanager
    def _matrix_precision(self) -> Iterator[None]:
        """Convolutions and products in TF32 or not, and no other setting changed behind it."""
        if not torch.cuda.is_available():
            yield
            return
        settings: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
        before = [setting.allow_tf32 for setting in settings]
        for setting in settings:
            setting.allow_tf32 = self.precision != "fp32"
        try:
            yield
        finally:
            for setting, value in zip(settings, before, strict=True):
                setting.allow_tf32 = value
