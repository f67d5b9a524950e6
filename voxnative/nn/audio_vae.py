"""AudioVAE v1 and v2: waveform <-> latent frames, causal in both directions.

Weight norm is folded at load; the modules hold plain weights under the reference's names.
The decoder walks its layers through a `run` callable, so that a whole decode and a stream
(`vae_stream`) share one definition of the path.

Source: voxcpm/modules/audiovae/audio_vae_v2.py and audio_vae.py, `AudioVAE` of each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxnative.config_vae import VAEConfig
from voxnative.nn.causal_conv import CausalConv1d, CausalLayer, CausalTransposeConv1d

RunLayer = Callable[[CausalLayer, Tensor], Tensor]
_DILATIONS = (1, 3, 9)


def run_whole(layer: CausalLayer, x: Tensor) -> Tensor:
    """Run a causal layer on a whole signal, from zeros."""
    return layer(x)


def walk(layers: Iterable[nn.Module], x: Tensor, run: RunLayer) -> Tensor:
    """Apply layers in order; `run` decides where those with a tail take their left context from."""
    for layer in layers:
        if isinstance(layer, CausalConv1d | CausalTransposeConv1d):
            x = run(layer, x) if layer.n_tail else layer(x)
        elif isinstance(layer, Snake | nn.Tanh):
            x = layer(x)
        else:
            x = layer(x, run)
    return x


class Snake(nn.Module):
    """x + sin^2(alpha x) / alpha, a learned period for each channel.

    Source: `Snake1d`.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, n] -> [B, C, n]."""
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).square()


class ResidualUnit(nn.Module):
    """Dilated convolution and 1x1 convolution beside an identity.

    Source: `CausalResidualUnit`.
    """

    def __init__(self, channels: int, dilation: int, *, depthwise: bool) -> None:
        super().__init__()
        groups = channels if depthwise else 1
        self.block = nn.ModuleList(
            (
                Snake(channels),
                CausalConv1d(channels, channels, 7, dilation=dilation, groups=groups),
                Snake(channels),
                CausalConv1d(channels, channels, 1),
            )
        )

    def forward(self, x: Tensor, run: RunLayer) -> Tensor:
        """[B, C, n] -> [B, C, n]."""
        return x + walk(self.block, x, run)


class EncoderBlock(nn.Module):
    """Residual units, then downsampling by `stride` into twice the channels.

    Source: `CausalEncoderBlock`; in v1 its convolution pads by a multiple of two, so that an odd
    stride reads one column further back.
    """

    def __init__(self, channels: int, stride: int, cfg: VAEConfig) -> None:
        super().__init__()
        units = (
            ResidualUnit(channels, dilation, depthwise=cfg.depthwise) for dilation in _DILATIONS
        )
        n_late = stride % 2 if cfg.late_odd_strides else 0
        down = CausalConv1d(channels, 2 * channels, 2 * stride, stride=stride, n_late=n_late)
        self.block = nn.ModuleList((*units, Snake(channels), down))

    def forward(self, x: Tensor, run: RunLayer) -> Tensor:
        """[B, C, n] -> [B, 2C, n / stride]."""
        return walk(self.block, x, run)


class DecoderBlock(nn.Module):
    """Upsampling by `stride` into half the channels, then residual units.

    Source: `CausalDecoderBlock`.
    """

    def __init__(self, channels: int, stride: int, *, depthwise: bool) -> None:
        super().__init__()
        half = channels // 2
        units = (ResidualUnit(half, dilation, depthwise=depthwise) for dilation in _DILATIONS)
        self.block = nn.ModuleList(
            (Snake(channels), CausalTransposeConv1d(channels, half, stride), *units)
        )

    def forward(self, x: Tensor, run: RunLayer) -> Tensor:
        """[B, C, n] -> [B, C / 2, n * stride]."""
        return walk(self.block, x, run)


class Encoder(nn.Module):
    """Waveform -> mean and log-variance of the latents.

    Source: `CausalEncoder`.
    """

    def __init__(self, cfg: VAEConfig) -> None:
        super().__init__()
        channels = cfg.encoder_dim
        layers: list[nn.Module] = [CausalConv1d(1, channels, 7)]
        for stride in cfg.encoder_rates:
            layers.append(EncoderBlock(channels, stride, cfg))
            channels *= 2
        self.block = nn.ModuleList(layers)
        self.fc_mu = CausalConv1d(channels, cfg.latent_dim, 3)
        # Trained with the rest, never evaluated; held so that checkpoints map name for name.
        self.fc_logvar = CausalConv1d(channels, cfg.latent_dim, 3)

    def forward(self, wave: Tensor) -> Tensor:
        """[B, 1, n_samples] -> latent means [B, D, n_frames]."""
        return self.fc_mu(walk(self.block, wave, run_whole))


class RateCondition(nn.Module):
    """Shifts and scales channels by the bin of the output sample rate.

    Source: `SampleRateConditionLayer`.
    """

    def __init__(self, channels: int, bin_index: int, cfg: VAEConfig) -> None:
        super().__init__()
        n_bins = len(cfg.sr_bin_boundaries or ()) + 1
        self.bin_index = bin_index
        self.scales = cfg.cond_type in ("scale_bias", "scale_bias_init")
        self.concatenates = cfg.cond_type == "concat"
        if self.scales:
            self.scale_embed = nn.Embedding(n_bins, channels)
            self.bias_embed = nn.Embedding(n_bins, channels)
        else:
            self.cond_embed = nn.Embedding(n_bins, cfg.cond_dim if self.concatenates else channels)
        width = channels + cfg.cond_dim if self.concatenates else channels
        self.out_layer = nn.ModuleList(
            (Snake(width), CausalConv1d(width, channels, 1)) if cfg.cond_out_layer else ()
        )

    def forward(self, x: Tensor, run: RunLayer) -> Tensor:
        """[B, C, n] -> [B, C, n]."""
        B, _, n = x.shape
        if self.scales:
            scale = self.scale_embed.weight[self.bin_index].view(1, -1, 1)
            x = x * scale + self.bias_embed.weight[self.bin_index].view(1, -1, 1)
        else:
            embedded = self.cond_embed.weight[self.bin_index].view(1, -1, 1)
            x = torch.cat((x, embedded.expand(B, -1, n)), 1) if self.concatenates else x + embedded
        return walk(self.out_layer, x, run)


class Decoder(nn.Module):
    """Latents -> waveform at the output rate.

    Source: `CausalDecoder`.
    """

    sr_bin_boundaries: Tensor

    def __init__(self, cfg: VAEConfig) -> None:
        super().__init__()
        channels = cfg.decoder_dim
        layers: list[nn.Module] = (
            [
                CausalConv1d(cfg.latent_dim, cfg.latent_dim, 7, groups=cfg.latent_dim),
                CausalConv1d(cfg.latent_dim, channels, 1),
            ]
            if cfg.depthwise
            else [CausalConv1d(cfg.latent_dim, channels, 7)]
        )
        conditions: dict[str, nn.Module] = {}
        for stride in cfg.decoder_rates:
            if cfg.sr_bin_boundaries is not None:
                bin_index = bisect_left(cfg.sr_bin_boundaries, cfg.out_sample_rate_hz)
                conditions[str(len(layers))] = RateCondition(channels, bin_index, cfg)
            layers.append(DecoderBlock(channels, stride, depthwise=cfg.depthwise))
            channels //= 2
        layers += [Snake(channels), CausalConv1d(channels, 1, 7), nn.Tanh()]
        self.model = nn.ModuleList(layers)
        self.sr_cond_model = nn.ModuleDict(conditions)
        if cfg.sr_bin_boundaries is not None:
            boundaries = torch.tensor(cfg.sr_bin_boundaries, dtype=torch.int32)
            self.register_buffer("sr_bin_boundaries", boundaries)

    def forward(self, latents: Tensor, run: RunLayer) -> Tensor:
        """[B, D, n_frames] -> [B, 1, n_frames * hop]."""
        x = latents
        for index, layer in enumerate(self.model):
            key = str(index)
            if key in self.sr_cond_model:
                x = self.sr_cond_model[key](x, run)
            x = walk((layer,), x, run)
        return x


class AudioVAE(nn.Module):
    """Waveform <-> latent frames; callers keep it in fp32."""

    def __init__(self, cfg: VAEConfig) -> None:
        super().__init__()
        self.encoder_hop = cfg.encoder_hop
        self.encoder = Encoder(cfg)
        self.decoder = Decoder(cfg)

    def encode(self, wave: Tensor) -> Tensor:
        """Mean latents of a waveform, padded on the right to whole frames.

        Args:
            wave: [B, n_samples] at the encoder's rate.

        Returns:
            [B, n_frames, D].
        """
        n_missing = -wave.shape[-1] % self.encoder_hop
        padded = F.pad(wave, (0, n_missing)).unsqueeze(1)  # [B, 1, n_frames * hop]
        return self.encoder(padded).transpose(1, 2)

    def decode(self, latents: Tensor) -> Tensor:
        """Waveform of a whole utterance.

        Args:
            latents: [B, n_frames, D].

        Returns:
            [B, n_frames * hop] at the output rate, within -1..1.
        """
        return self.decoder(latents.transpose(1, 2), run_whole).squeeze(1)
