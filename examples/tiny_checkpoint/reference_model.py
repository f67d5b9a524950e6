"""The networks that are trained: VoxCPM2's own modules, from the PyPI `voxcpm` package.

Importing the whole package drags in torchaudio, modelscope and a resampler that training does
not need, so the package's `__init__` and those imports are replaced by empty stand-ins.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path

SPECIAL_IDS = {"audio_start": 101, "audio_end": 102, "ref_audio_start": 103, "ref_audio_end": 104}


def import_voxcpm2():
    """Return the module `voxcpm.model.voxcpm2`.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    if "voxcpm.model.voxcpm2" not in sys.modules:
        spec = importlib.util.find_spec("voxcpm")
        if spec is None:
            raise ModuleNotFoundError(
                "the recipe trains VoxCPM2's own modules: pip install --no-deps voxcpm==2.0.3"
            )
        root = Path(next(iter(spec.submodule_search_locations)))
        for name, path in (("voxcpm", root), ("voxcpm.model", root / "model")):
            package = types.ModuleType(name)
            package.__path__ = [str(path)]
            sys.modules[name] = package
        importlib.import_module(
            "transformers"
        )  # looks for torchaudio itself: before the stand-in exists
        absent = [
            name for name in ("librosa", "torchaudio") if importlib.util.find_spec(name) is None
        ]
        sys.modules.update({name: types.ModuleType(name) for name in absent})
        importlib.import_module("voxcpm.model.voxcpm2")
        for name in absent:
            del sys.modules[name]
    return sys.modules["voxcpm.model.voxcpm2"]


def checkpoint_config(settings) -> dict:
    """Return `config.json`: the published keys, and voxnative's own two."""
    t, v = settings.tts, settings.vae
    return {
        "architecture": "voxcpm2",
        "lm_config": {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_size": t.hidden,
            "intermediate_size": t.ffn,
            "max_position_embeddings": t.max_positions,
            "num_attention_heads": t.n_heads,
            "num_hidden_layers": t.lm_layers,
            "num_key_value_heads": t.n_kv_heads,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0,
            "kv_channels": t.head_dim,
            "rope_scaling": {
                "type": "longrope",
                "long_factor": [1.0] * (t.head_dim // 2),
                "short_factor": [1.0] * (t.head_dim // 2),
                "original_max_position_embeddings": t.max_positions,
            },
            "vocab_size": 128,
            "use_mup": False,
            "scale_emb": 12,
            "dim_model_base": 256,
            "scale_depth": 1.4,
        },
        "patch_size": t.patch_size,
        "feat_dim": v.latent_dim,
        "residual_lm_num_layers": t.residual_layers,
        "residual_lm_no_rope": True,
        "scalar_quantization_latent_dim": t.fsq_dim,
        "scalar_quantization_scale": t.fsq_scale,
        "encoder_config": _local_config(t, t.encoder_layers),
        "dit_config": {
            **_local_config(t, t.dit_layers),
            "dit_mean_mode": False,
            "cfm_config": {
                "sigma_min": 1e-06,
                "solver": "euler",
                "t_scheduler": "log-norm",
                "training_cfg_rate": t.cfg_drop,
                "inference_cfg_rate": settings.evaluate.cfg_value,
            },
        },
        "audio_vae_config": {
            "encoder_dim": v.encoder_dim,
            "encoder_rates": v.encoder_rates,
            "latent_dim": v.latent_dim,
            "decoder_dim": v.decoder_dim,
            "decoder_rates": v.decoder_rates,
            "depthwise": False,
            "sample_rate": v.sample_rate_hz,
            "out_sample_rate": v.sample_rate_hz,
            "use_noise_block": False,
            "sr_bin_boundaries": [20000, 30000, 40000],
        },
        # voxnative's own keys: spell out digits and symbols first; it never learned to continue.
        "text_frontend": "english",
        "long_text_joint": "separate",
        "max_length": t.max_positions // 2,
        "device": "cpu",
        "dtype": "float32",
    }


def _local_config(t, n_layers: int) -> dict:
    return {
        "hidden_dim": t.hidden,
        "ffn_dim": t.ffn,
        "num_heads": t.n_heads,
        "num_layers": n_layers,
        "kv_channels": t.head_dim,
    }


def build_vae(settings):
    """Build a fresh AudioVAE v2 in float32."""
    module = import_voxcpm2()
    return module.AudioVAEV2(
        config=module.AudioVAEConfigV2(**checkpoint_config(settings)["audio_vae_config"])
    )


def build_tts(settings):
    """Build a fresh VoxCPM2 model without its VAE, in float32, on the CPU.

    The constructor wants a tokenizer and a VAE only to read four attributes of them.
    """
    module = import_voxcpm2()
    config = module.VoxCPMConfig.model_validate(checkpoint_config(settings))
    no_tokenizer = types.SimpleNamespace(vocab={})
    frame = 1
    for rate in settings.vae.encoder_rates:
        frame *= rate
    no_vae = types.SimpleNamespace(
        chunk_size=frame,
        sample_rate=settings.vae.sample_rate_hz,
        latent_dim=settings.vae.latent_dim,
    )
    model = module.VoxCPM2Model(config, no_tokenizer, no_vae, device="cpu")
    for lm in (model.base_lm, model.residual_lm):
        lm.kv_cache = None  # decoding only
    return model
