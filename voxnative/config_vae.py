"""Sizes of the AudioVAE, from `audio_vae_config`, in its two versions.

Source: voxcpm/modules/audiovae/audio_vae.py and audio_vae_v2.py, `AudioVAEConfig` of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from voxnative.config_section import Section


@dataclass(frozen=True)
class VAEConfig:
    """Waveform at `sample_rate_hz` -> latent frames -> waveform at `out_sample_rate_hz`."""

    encoder_dim: int = 128
    encoder_rates: tuple[int, ...] = (2, 5, 8, 8)
    latent_dim: int = 64
    decoder_dim: int = 2048
    decoder_rates: tuple[int, ...] = (8, 6, 5, 2, 2, 2)
    depthwise: bool = True
    sample_rate_hz: int = 16_000
    out_sample_rate_hz: int = 48_000
    use_noise_block: bool = False
    sr_bin_boundaries: tuple[int, ...] | None = (20_000, 30_000, 40_000)
    cond_type: str = "scale_bias"
    cond_dim: int = 128
    cond_out_layer: bool = False
    late_odd_strides: bool = False  # v1: the encoder's odd strides read one column further back

    @property
    def encoder_hop(self) -> int:
        """Input samples a latent frame."""
        return math.prod(self.encoder_rates)

    @property
    def decoder_hop(self) -> int:
        """Output samples a latent frame."""
        return math.prod(self.decoder_rates)


_V1 = VAEConfig(
    decoder_dim=1536,
    decoder_rates=(8, 8, 5, 2),
    out_sample_rate_hz=16_000,
    sr_bin_boundaries=None,
    late_odd_strides=True,
)


def read_vae_v1(s: Section) -> VAEConfig:
    """AudioVAE v1: one rate in and out, and no conditioning on it."""
    sizes = _read_sizes(s, _V1)
    config = replace(_V1, **sizes, out_sample_rate_hz=sizes["sample_rate_hz"])
    s.finish()
    _check(s, config)
    if config.decoder_hop != config.encoder_hop:
        valid = f"rates whose product is that of encoder_rates, {config.encoder_hop}"
        raise s.error("decoder_rates", list(config.decoder_rates), valid)
    return config


def read_vae_v2(s: Section) -> VAEConfig:
    """AudioVAE v2: an output rate of its own, on which the decoder is conditioned."""
    d = VAEConfig()
    config = VAEConfig(
        **_read_sizes(s, d),
        out_sample_rate_hz=s.integer("out_sample_rate", d.out_sample_rate_hz),
        sr_bin_boundaries=s.optional_integers("sr_bin_boundaries", d.sr_bin_boundaries),
        cond_type=s.choice(
            "cond_type", ("scale_bias", "scale_bias_init", "add", "concat"), d.cond_type
        ),
        cond_dim=s.integer("cond_dim", d.cond_dim),
        cond_out_layer=s.flag("cond_out_layer", d.cond_out_layer),
    )
    s.finish()
    _check(s, config)
    if config.cond_type == "concat" and not config.cond_out_layer:
        raise s.error("cond_out_layer", False, 'true where cond_type is "concat"')
    return config


def _read_sizes(s: Section, d: VAEConfig) -> dict[str, Any]:
    """What both versions have."""
    rates = s.integers("encoder_rates", d.encoder_rates)
    encoder_dim = s.integer("encoder_dim", d.encoder_dim)
    return {
        "encoder_dim": encoder_dim,
        "encoder_rates": rates,
        "latent_dim": s.optional_integer("latent_dim", d.latent_dim)
        or encoder_dim * 2 ** len(rates),
        "decoder_dim": s.integer("decoder_dim", d.decoder_dim),
        "decoder_rates": s.integers("decoder_rates", d.decoder_rates),
        "depthwise": s.flag("depthwise", d.depthwise),
        "sample_rate_hz": s.integer("sample_rate", d.sample_rate_hz),
        "use_noise_block": s.flag("use_noise_block", d.use_noise_block),
    }


def _check(s: Section, config: VAEConfig) -> None:
    if config.use_noise_block:
        raise s.error(
            "use_noise_block",
            True,
            "false (a noise block draws fresh noise for every sample: a stream could not repeat"
            " the whole decode)",
        )
    if config.decoder_dim % 2 ** len(config.decoder_rates):
        raise s.error(
            "decoder_dim", config.decoder_dim, f"a multiple of {2 ** len(config.decoder_rates)}"
        )
