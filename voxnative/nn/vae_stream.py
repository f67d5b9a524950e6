"""Streaming decode of the AudioVAE: chunks of latents in, only their own samples out.

The state is an argument: one tail for each causal layer, in the order the decoder runs them,
with a row for each stream. Rows are independent, so streams at different positions share a call,
and a tail of zeros is a stream that has not begun.

Source: voxcpm/modules/audiovae/audio_vae_v2.py `StreamingVAEDecoder`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

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

    Raises:
        ParameterError: another precision.
    """

    def __init__(self, vae: AudioVAE, precision: str = "fp32") -> None:
        if precision not in PRECISIONS:
            raise ParameterError("vae_precision", precision, ", ".join(PRECISIONS))
        self.precision = precision
        self.dtype = torch.float16 if precision == "fp16" else torch.float32
        self.model = copy.deepcopy(vae.decoder).half() if precision == "fp16" else vae.decoder

    def decode(self, latents: Tensor, tails: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """As :func:`decode_chunk`; waves are fp32, tails have `dtype`."""
        with self._matrix_precision():
            wave, tails = stream_decode(self.model, latents.to(self.dtype), tails)
        return wave.float(), tails

    @contextmanager
    def _matrix_precision(self) -> Iterator[None]:
        """Convolutions and products in TF32 or not, and no other setting changed behind it."""
        if not torch.cuda.is_available():
            yield
            return
        allow_tf32 = self.precision != "fp32"
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = allow_tf32
        try:
            with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=allow_tf32):
                yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
