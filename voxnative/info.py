"""What a checkpoint is made of, read from its files without starting an engine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from voxnative.checkpoint import iter_lm_tensors, iter_vae_tensors
from voxnative.config import VoxConfig
from voxnative.config_lm import LMConfig
from voxnative.kv_memory import DTYPE_BYTES, kv_bytes_per_position
from voxnative.tensor_split import possible_splits

VAE_BYTES = 4  # the VAE runs in float32 whatever the checkpoint's dtype is

# Prefixes of tensor names -> the part they belong to; whatever is left projects between parts.
_PARTS = {
    "base_lm.": "base LM",
    "residual_lm.": "residual LM",
    "feat_encoder.": "local encoder",
    "feat_decoder.": "local DiT",
    "audio_vae.": "audio VAE",
}
_REST = "projections and heads"


def describe(directory: Path) -> str:
    """Architecture, sizes, parameters, memory and rates of a checkpoint, one a line.

    Raises:
        CheckpointError: the directory is no checkpoint.
    """
    config = VoxConfig.from_dir(directory)
    counts = count_parameters(directory)
    n_total = sum(counts.values())
    n_vae = counts["audio VAE"]
    n_context = min(config.max_length, config.lm.max_position_embeddings)
    vae = config.vae
    patch_s = config.patch_samples_out / vae.out_sample_rate_hz
    weights = (n_total - n_vae) * DTYPE_BYTES[config.dtype] + n_vae * VAE_BYTES
    position = kv_bytes_per_position(config, config.dtype)
    rows = [
        ("checkpoint", str(directory)),
        ("architecture", f"{config.family.architecture}, {config.dtype}"),
        ("prompt modes", ", ".join(config.family.modes)),
        ("parameters", f"{_millions(n_total)} in all"),
        *((f"  {part}", _millions(n)) for part, n in counts.items()),
        ("base LM", f"{_sizes(config.lm)}, vocabulary {config.lm.vocab_size}"),
        ("residual LM", _sizes(config.residual_lm)),
        ("local encoder", _sizes(config.encoder)),
        ("local DiT", _sizes(config.dit)),
        ("patch", f"{config.patch_size} frames of {config.feat_dim}, {1000 * patch_s:g} ms"),
        ("audio in", f"{vae.sample_rate_hz} Hz, {vae.encoder_hop} samples a frame"),
        ("audio out", f"{vae.out_sample_rate_hz} Hz, {vae.decoder_hop} samples a frame"),
        ("context", f"{n_context} positions, {n_context * patch_s:.0f} s of audio at most"),
        ("weights", f"{_megabytes(weights)} of memory"),
        (
            "KV cache",
            f"{position / 1e3:.1f} kB a position, {_megabytes(position * n_context)} full",
        ),
        *_split_rows(config),
    ]
    return "".join(f"{name:24}{value}\n" for name, value in rows)


def count_parameters(directory: Path) -> Counter[str]:
    """Parameters of each part, weight-norm pairs counted as the one weight they fold to."""
    counts = Counter(dict.fromkeys([*_PARTS.values(), _REST], 0))
    for tensors in (iter_lm_tensors(directory), iter_vae_tensors(directory, "audio_vae.")):
        for name, tensor, _ in tensors:
            part = next((part for prefix, part in _PARTS.items() if name.startswith(prefix)), _REST)
            counts[part] += tensor.numel()
    return counts


def _split_rows(config: VoxConfig) -> list[tuple[str, str]]:
    """The KV cache of each rank, for every number of ranks that can share the language models."""
    rows = []
    for n_ranks in possible_splits(config)[1:]:
        position = kv_bytes_per_position(config, config.dtype, n_ranks)
        rows.append((f"  each of {n_ranks} ranks", f"{position / 1e3:.1f} kB a position"))
    return rows


def _sizes(lm: LMConfig) -> str:
    rope = ", no RoPE" if lm.no_rope else ""
    return (
        f"{lm.num_hidden_layers} layers, hidden {lm.hidden_size}, FFN {lm.intermediate_size}, "
        f"{lm.num_attention_heads} heads of {lm.head_dim} ({lm.num_key_value_heads} KV){rope}"
    )


def _millions(n: int) -> str:
    return f"{n / 1e6:,.2f} M"


def _megabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:,.1f} MB"
