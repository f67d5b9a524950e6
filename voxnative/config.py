"""The one reader of a checkpoint's `config.json`: strict, frozen, without torch.

An unknown key, a missing key or a value of the wrong type is a `CheckpointError` that names the
key and what is valid. Sizes that other code would otherwise derive again (hops, head sizes, token
ids behind the text vocabulary) are read from here.

Source: voxcpm/model/voxcpm2.py `VoxCPMConfig`, voxcpm/modules/minicpm4/config.py
`MiniCPM4Config`, voxcpm/modules/locdit/unified_cfm.py `CfmConfig`,
voxcpm/modules/audiovae/audio_vae_v2.py `AudioVAEConfig`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from voxnative.config_section import Section
from voxnative.errors import CheckpointError
from voxnative.units import N_ENGINE_IDS

ARCHITECTURE = "voxcpm2"
CONFIG_FILE = "config.json"

# Written into config.json by Hugging Face tools; they say nothing about the networks.
_HUB_KEYS = ("model_type", "architectures", "transformers_version", "torch_dtype", "auto_map")

# Text front ends that a checkpoint can ask for; voxnative's own key, ignored by upstream.
TEXT_FRONTENDS = ("none", "english")

_DTYPES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "float32": "float32",
    "fp32": "float32",
}


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


@dataclass(frozen=True)
class CFMConfig:
    """Flow-matching settings; inference takes cfg and timesteps from the request instead."""

    sigma_min: float = 1e-6
    solver: str = "euler"
    t_scheduler: str = "log-norm"
    training_cfg_rate: float = 0.1
    inference_cfg_rate: float = 1.0
    reg_loss_type: str = "l1"
    ratio_r_neq_t_range: tuple[float, ...] = (0.25, 0.75)
    noise_cond_prob_range: tuple[float, ...] = (0.0, 0.0)
    noise_cond_scale: float = 0.0


@dataclass(frozen=True)
class VAEConfig:
    """AudioVAE v2: waveform at `sample_rate_hz` -> latent frames -> `out_sample_rate_hz`."""

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

    @property
    def encoder_hop(self) -> int:
        """Input samples a latent frame."""
        return math.prod(self.encoder_rates)

    @property
    def decoder_hop(self) -> int:
        """Output samples a latent frame."""
        return math.prod(self.decoder_rates)


@dataclass(frozen=True)
class VoxConfig:
    """Everything `config.json` says about a VoxCPM2 checkpoint."""

    lm: LMConfig
    residual_lm: LMConfig
    encoder: LMConfig
    dit: LMConfig
    cfm: CFMConfig
    vae: VAEConfig
    dit_mean_mode: bool
    fsq_latent_dim: int
    fsq_scale: int
    patch_size: int  # latent frames a patch (P)
    feat_dim: int  # channels a latent frame (D)
    max_length: int
    dtype: str  # "bfloat16", "float16" or "float32"
    text_frontend: str  # one of TEXT_FRONTENDS; "none": text reaches the tokenizer as it is
    raw: dict[str, Any] = field(repr=False, compare=False)

    @property
    def patch_samples_in(self) -> int:
        """Samples of reference audio a patch, at `vae.sample_rate_hz`."""
        return self.patch_size * self.vae.encoder_hop

    @property
    def patch_samples_out(self) -> int:
        """Samples of generated audio a patch, at `vae.out_sample_rate_hz`."""
        return self.patch_size * self.vae.decoder_hop

    @property
    def audio_patch_id(self) -> int:
        """Placeholder id of a position that holds a given audio patch."""
        return self.lm.vocab_size

    @property
    def continue_id(self) -> int:
        """Id sampled for every generated patch after which speech goes on."""
        return self.lm.vocab_size + 1

    @property
    def stop_id(self) -> int:
        """Id sampled with the last patch."""
        return self.lm.vocab_size + 2

    @property
    def engine_vocab_size(self) -> int:
        """Text vocabulary plus the ids the engine adds behind it."""
        return self.lm.vocab_size + N_ENGINE_IDS

    @classmethod
    def from_dir(cls, path: str | Path) -> VoxConfig:
        """Read `config.json` of a checkpoint directory.

        Raises:
            CheckpointError: no such file, not JSON, or anything `from_dict` refuses.
        """
        file = Path(path) / CONFIG_FILE
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise CheckpointError(
                f"cannot read {file}: {error.strerror}; a checkpoint directory holds"
                f" {CONFIG_FILE}, the weights and the tokenizer files",
                path=file,
            ) from error
        except ValueError as error:
            raise CheckpointError(f"{file} is not valid JSON: {error}", path=file) from error
        if not isinstance(content, dict):
            raise CheckpointError(f"{file} does not hold a JSON object", path=file)
        return cls.from_dict(content, path=file)

    @classmethod
    def from_dict(cls, d: Mapping[str, Any], path: str | Path | None = None) -> VoxConfig:
        """Check and convert the content of `config.json`.

        Args:
            d: the parsed file.
            path: the file, for messages.

        Raises:
            CheckpointError: unknown or missing key, wrong type, or sizes that contradict.
        """
        top = Section(d, "", path)
        top.choice("architecture", (ARCHITECTURE,))
        lm = _read_lm(top.section("lm_config"))
        dit, dit_mean_mode, cfm = _read_dit(top.section("dit_config"), lm)
        vae = _read_vae(top.section("audio_vae_config", optional=True))
        top.ignore("device", *_HUB_KEYS)
        config = cls(
            lm=lm,
            residual_lm=replace(
                lm,
                num_hidden_layers=top.integer("residual_lm_num_layers", 8),
                vocab_size=0,
                no_rope=top.flag("residual_lm_no_rope", False),
            ),
            encoder=_read_local(top.section("encoder_config"), lm),
            dit=dit,
            cfm=cfm,
            vae=vae,
            dit_mean_mode=dit_mean_mode,
            fsq_latent_dim=top.integer("scalar_quantization_latent_dim", 512),
            fsq_scale=top.integer("scalar_quantization_scale", 9),
            patch_size=top.integer("patch_size", 4),
            feat_dim=top.integer("feat_dim", 64),
            max_length=top.integer("max_length", 8192),
            dtype=_DTYPES[top.choice("dtype", tuple(_DTYPES), "bfloat16")],
            text_frontend=top.choice("text_frontend", TEXT_FRONTENDS, "none"),
            raw=dict(d),
        )
        top.finish()
        if config.feat_dim != vae.latent_dim:
            valid = f"audio_vae_config.latent_dim, {vae.latent_dim}"
            raise top.error("feat_dim", config.feat_dim, valid)
        return config


def _read_lm(s: Section) -> LMConfig:
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


def _read_local(s: Section, lm: LMConfig, *, finish: bool = True) -> LMConfig:
    """A network over one patch: its own sizes, everything else as in the base LM."""
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
    if finish:
        s.finish()
    _check_heads(s, config, "num_heads")
    return config


def _read_dit(s: Section, lm: LMConfig) -> tuple[LMConfig, bool, CFMConfig]:
    dit = _read_local(s, lm, finish=False)
    mean_mode = s.flag("dit_mean_mode", False)
    s.ignore("mean_mode")  # in the published file; the reference reads dit_mean_mode alone
    c = s.section("cfm_config")
    d = CFMConfig()
    cfm = CFMConfig(
        sigma_min=c.number("sigma_min", d.sigma_min),
        solver=c.choice("solver", ("euler",), d.solver),
        t_scheduler=c.choice("t_scheduler", ("log-norm", "uniform"), d.t_scheduler),
        training_cfg_rate=c.number("training_cfg_rate", d.training_cfg_rate),
        inference_cfg_rate=c.number("inference_cfg_rate", d.inference_cfg_rate),
        reg_loss_type=c.text("reg_loss_type", d.reg_loss_type),
        ratio_r_neq_t_range=c.numbers("ratio_r_neq_t_range", d.ratio_r_neq_t_range),
        noise_cond_prob_range=c.numbers("noise_cond_prob_range", d.noise_cond_prob_range),
        noise_cond_scale=c.number("noise_cond_scale", d.noise_cond_scale),
    )
    c.finish()
    s.finish()
    return dit, mean_mode, cfm


def _read_vae(s: Section) -> VAEConfig:
    d = VAEConfig()
    rates = s.integers("encoder_rates", d.encoder_rates)
    encoder_dim = s.integer("encoder_dim", d.encoder_dim)
    config = VAEConfig(
        encoder_dim=encoder_dim,
        encoder_rates=rates,
        latent_dim=s.optional_integer("latent_dim", d.latent_dim) or encoder_dim * 2 ** len(rates),
        decoder_dim=s.integer("decoder_dim", d.decoder_dim),
        decoder_rates=s.integers("decoder_rates", d.decoder_rates),
        depthwise=s.flag("depthwise", d.depthwise),
        sample_rate_hz=s.integer("sample_rate", d.sample_rate_hz),
        out_sample_rate_hz=s.integer("out_sample_rate", d.out_sample_rate_hz),
        use_noise_block=s.flag("use_noise_block", d.use_noise_block),
        sr_bin_boundaries=s.optional_integers("sr_bin_boundaries", d.sr_bin_boundaries),
        cond_type=s.choice(
            "cond_type", ("scale_bias", "scale_bias_init", "add", "concat"), d.cond_type
        ),
        cond_dim=s.integer("cond_dim", d.cond_dim),
        cond_out_layer=s.flag("cond_out_layer", d.cond_out_layer),
    )
    s.finish()
    if config.use_noise_block:
        raise s.error(
            "use_noise_block",
            True,
            "false (a noise block draws fresh noise for every sample: a stream could not repeat"
            " the whole decode)",
        )
    if config.cond_type == "concat" and not config.cond_out_layer:
        raise s.error("cond_out_layer", False, 'true where cond_type is "concat"')
    if config.decoder_dim % 2 ** len(config.decoder_rates):
        raise s.error(
            "decoder_dim", config.decoder_dim, f"a multiple of {2 ** len(config.decoder_rates)}"
        )
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
