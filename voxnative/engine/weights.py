"""Checkpoint tensors -> the parameters of the paged model, strictly."""

from pathlib import Path

from torch import nn
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from voxnative.checkpoint_shapes import iter_tensors, verify_checkpoint
from voxnative.config import VoxConfig

# Checkpoint prefix -> module path, where the two differ.
RENAMED = (
    ("base_lm.embed_tokens.", "embed_tokens."),
    ("stop_proj.", "stop.stop_proj."),
    ("stop_head.", "stop.stop_head."),
    ("feat_encoder.", "speech.feat_encoder."),
    ("feat_decoder.", "speech.feat_decoder."),
    ("enc_to_lm_proj.", "speech.enc_to_lm_proj."),
    ("lm_to_dit_proj.", "speech.lm_to_dit_proj."),
    ("res_to_dit_proj.", "speech.res_to_dit_proj."),
    ("audio_vae.", "speech.audio_vae."),
)
# Projection of the checkpoint -> (packed layer of vLLM, its shard).
PACKED: dict[str, tuple[str, str | int]] = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
PAGED_PREFIXES = ("base_lm.", "residual_lm.")


def load_checkpoint(model: nn.Module, config: VoxConfig, directory: Path) -> set[str]:
    """Load every tensor of a checkpoint directory into ``model``.

    Args:
        model: a ``VoxCPM2ForSpeech`` on its final device.
        config: its configuration.
        directory: a checkpoint in the published format.

    Returns:
        The names of the parameters that were loaded: all of them.

    Raises:
        CheckpointError: missing, unexpected or mis-shaped tensors, named with the file.
    """
    verify_checkpoint(directory, config)
    parameters = dict(model.named_parameters())
    loaded: set[str] = set()
    for name, tensor, _ in iter_tensors(directory):
        target, shard = parameter_of(name)
        if target not in parameters:
            continue  # a buffer that the configuration determines
        parameter = parameters[target]
        load = getattr(parameter, "weight_loader", default_weight_loader)
        load(parameter, tensor, *([] if shard is None else [shard]))
        loaded.add(target)
    return loaded


def parameter_of(name: str) -> tuple[str, str | int | None]:
    """Module parameter and shard of a checkpoint tensor (`audio_vae.` in front of the VAE's)."""
    if name.startswith(PAGED_PREFIXES):
        path, projection, kind = name.rpartition(".")[0].rpartition(".")[0], *name.split(".")[-2:]
        if projection in PACKED:
            packed, shard = PACKED[projection]
            return f"{path}.{packed}.{kind}", shard
    for prefix, replacement in RENAMED:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix), None
    return name, None
