"""Discriminators of the AudioVAE: by period (HiFi-GAN) and by complex spectrogram (EnCodec)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

PERIODS = (2, 3, 5, 7)
WINDOWS = (1024, 512, 256)


def _conv(n_in: int, n_out: int, kernel, stride=(1, 1), dilation=(1, 1)) -> nn.Conv2d:
    padding = [d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True)]
    return nn.utils.parametrizations.weight_norm(
        nn.Conv2d(n_in, n_out, kernel, stride, padding, dilation)
    )


class PeriodDiscriminator(nn.Module):
    """Looks at every p-th sample as one row of an image."""

    def __init__(self, period: int, width: int):
        super().__init__()
        self.period = period
        widths = [1, width * 2, width * 4, width * 8, width * 16]
        self.convs = nn.ModuleList(_conv(a, b, (5, 1), (3, 1)) for a, b in pairwise(widths))
        self.last = _conv(widths[-1], 1, (3, 1))

    def forward(self, audio: torch.Tensor) -> list[torch.Tensor]:
        """[B, 1, n_samples] -> feature maps, the last one being the verdict."""
        x = F.pad(audio, (0, -audio.shape[-1] % self.period))
        x = x.view(x.shape[0], 1, -1, self.period)
        return _features(x, self.convs, self.last)


class SpectrumDiscriminator(nn.Module):
    """Looks at real and imaginary parts of a short-time spectrum."""

    def __init__(self, window: int, width: int):
        super().__init__()
        self.window = window
        self.register_buffer("hann", torch.hann_window(window))
        shapes = [(2, width, (1, 1), (1, 1))] + [(width, width, (1, 2), (d, 1)) for d in (1, 2, 4)]
        self.convs = nn.ModuleList(
            _conv(a, b, (3, 5 if s == (1, 2) else 3), s, d) for a, b, s, d in shapes
        )
        self.last = _conv(width, 1, (3, 3))

    def forward(self, audio: torch.Tensor) -> list[torch.Tensor]:
        """[B, 1, n_samples] -> feature maps, the last one being the verdict."""
        x = torch.stft(
            audio.squeeze(1),
            self.window,
            self.window // 4,
            window=self.hann,
            normalized=True,
            return_complex=True,
        )
        x = torch.view_as_real(x).permute(0, 3, 2, 1)  # [B, 2, frames, bins]
        return _features(x, self.convs, self.last)


def _features(x: torch.Tensor, convs, last) -> list[torch.Tensor]:
    features = []
    for conv in convs:
        x = F.leaky_relu(conv(x), 0.1)
        features.append(x)
    return [*features, last(x)]


class Discriminators(nn.Module):
    """All of them side by side."""

    def __init__(self, width: int):
        super().__init__()
        self.parts = nn.ModuleList(
            [PeriodDiscriminator(p, width) for p in PERIODS]
            + [SpectrumDiscriminator(w, width) for w in WINDOWS]
        )

    def forward(self, audio: torch.Tensor) -> list[list[torch.Tensor]]:
        """[B, 1, n_samples] -> one list of feature maps a discriminator."""
        return [part(audio) for part in self.parts]


def discriminator_loss(
    real: list[list[torch.Tensor]], fake: list[list[torch.Tensor]]
) -> torch.Tensor:
    """Hinge loss, averaged over the discriminators."""
    losses = [
        F.relu(1 - r[-1]).mean() + F.relu(1 + f[-1]).mean() for r, f in zip(real, fake, strict=True)
    ]
    return sum(losses) / len(losses)


def generator_losses(
    real: list[list[torch.Tensor]], fake: list[list[torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (hinge generator loss, relative feature distance), means over discriminators."""
    adversarial = sum(-f[-1].mean() for f in fake) / len(fake)
    distances = [
        (a.detach() - b).abs().mean() / a.detach().abs().mean().clamp(min=1e-3)
        for r, f in zip(real, fake, strict=True)
        for a, b in zip(r[:-1], f[:-1], strict=True)
    ]
    return adversarial, sum(distances) / len(distances)
