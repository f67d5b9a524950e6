"""The one reader of a checkpoint's `config.json`: strict, frozen, without torch.

An unknown key, a missing key or a value of the wrong type is a `CheckpointError` that names the
key and what is valid. Sizes that other code would otherwise derive again (hops, head sizes, token
ids behind the text vocabulary) are read from here. Each nested section has a file of its own:
`config_lm`, `config_flow`, `config_vae`.

Source: voxcpm/model/voxcpm2.py and voxcpm/model/voxcpm.py, `VoxCPMConfig` of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from voxnative.config_flow import CFMConfig, read_cfm
from voxnative.config_lm import LMConfig, read_lm, read_local
from voxnative.config_section import Section, read_object
from voxnative.config_vae import VAEConfig, read_vae_v1, read_vae_v2
from voxnative.family import VOXCPM, VOXCPM2, Family
from voxnative.units import JOINTS, N_ENGINE_IDS

CONFIG_FILE = "config.json"

# Written into config.json by Hugging Face tools; they say nothing about the networks.
_HUB_KEYS = ("model_type", "architectures", "transformers_version", "torch_dtype", "auto_map")

# Text front ends that a checkpoint can ask for. This key and `long_text_joint` are voxnative's own,
# ignored by upstream.
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
class _Form:
    """A family's form of the file: keys that only it has, and defaults of those that all have."""

    family: Family
    read_vae: Callable[[Section], VAEConfig]
    has_residual_rope_key: bool  # residual_lm_no_rope; else the residual LM is as the base LM
    has_nested_mean_mode: bool  # dit_mean_mode stands in dit_config, else at the top
    patch_size: int
    residual_lm_num_layers: int
    fsq_latent_dim: int
    max_length: int


_FORMS = {
    form.family.architecture: form
    for form in (
        _Form(VOXCPM2, read_vae_v2, True, True, 4, 8, 512, 8192),
        _Form(VOXCPM, read_vae_v1, False, False, 2, 6, 256, 4096),
    )
}
ARCHITECTURES = tuple(_FORMS)


@dataclass(frozen=True)
class VoxConfig:
    """Everything `config.json` says about a checkpoint."""

    family: Family
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
    long_text_joint: str  # one of JOINTS: how the pieces of a long text take over the voice
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
    def mu_size(self) -> int:
        """Width of the flow's condition (mu): that of its tokens in the local DiT together."""
        return self.family.n_mu_tokens * self.dit.hidden_size

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
        beside = f"a checkpoint directory holds {CONFIG_FILE}, the weights and the tokenizer files"
        return cls.from_dict(read_object(file, beside), path=file)

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
        form = _FORMS[top.choice("architecture", ARCHITECTURES)]
        lm = read_lm(top.section("lm_config"))
        encoder_section, dit_section = top.section("encoder_config"), top.section("dit_config")
        mean_mode_section = dit_section if form.has_nested_mean_mode else top
        top.ignore("device", *_HUB_KEYS)
        config = cls(
            family=form.family,
            lm=lm,
            residual_lm=replace(
                lm,
                num_hidden_layers=top.integer(
                    "residual_lm_num_layers", form.residual_lm_num_layers
                ),
                vocab_size=0,
                no_rope=top.flag("residual_lm_no_rope", False)
                if form.has_residual_rope_key
                else lm.no_rope,
            ),
            encoder=read_local(encoder_section, lm),
            dit=read_local(dit_section, lm),
            cfm=read_cfm(dit_section.section("cfm_config")),
            vae=form.read_vae(top.section("audio_vae_config", optional=True)),
            dit_mean_mode=mean_mode_section.flag("dit_mean_mode", False),
            fsq_latent_dim=top.integer("scalar_quantization_latent_dim", form.fsq_latent_dim),
            fsq_scale=top.integer("scalar_quantization_scale", 9),
            patch_size=top.integer("patch_size", form.patch_size),
            feat_dim=top.integer("feat_dim", 64),
            max_length=top.integer("max_length", form.max_length),
            dtype=_DTYPES[top.choice("dtype", tuple(_DTYPES), "bfloat16")],
            text_frontend=top.choice("text_frontend", TEXT_FRONTENDS, "none"),
            long_text_joint=top.choice("long_text_joint", JOINTS, "continue"),
            raw=dict(d),
        )
        dit_section.ignore("mean_mode")  # in published files; the reference doesn't read it
        for section in (encoder_section, dit_section):
            section.finish()
        top.finish()
        if config.feat_dim != config.vae.latent_dim:
            valid = f"audio_vae_config.latent_dim, {config.vae.latent_dim}"
            raise top.error("feat_dim", config.feat_dim, valid)
        return config
