"""Checkpoint tensors -> the parameters of the paged model, strictly."""

from pathlib import Path

from torch import nn
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from voxnative.checkpoint import check_names, iter_lm_tensors, iter_vae_tensors
from voxnative.config import LMConfig, VoxConfig

Shape = tuple[int, ...]

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


def load_checkpoint(model: nn.Module, directory: Path) -> set[str]:
    """Load every tensor of a checkpoint directory into ``model``.

    Args:
        model: a ``VoxCPM2ForSpeech`` on its final device.
        directory: a checkpoint in the published format.

    Returns:
        The names of the parameters that were loaded: all of them.

    Raises:
        CheckpointError: missing, unexpected or mis-shaped tensors, named with the file.
    """
    tensors = list(iter_lm_tensors(directory))
    tensors += [(f"audio_vae.{name}", t, file) for name, t, file in iter_vae_tensors(directory)]
    found = {name: (tuple(tensor.shape), file) for name, tensor, file in tensors}
    check_names(expected_shapes(model), found)
    parameters = dict(model.named_parameters())
    loaded: set[str] = set()
    for name, tensor, _ in tensors:
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


def expected_shapes(model: nn.Module) -> dict[str, Shape]:
    """Names and full (unsharded) shapes that the checkpoint of ``model`` must hold."""
    config: VoxConfig = model.config  # type: ignore[assignment]
    embedding: Shape = (config.lm.vocab_size, config.lm.hidden_size)
    expected = {"base_lm.embed_tokens.weight": embedding}
    expected |= _stack_shapes("base_lm", config.lm)
    expected |= _stack_shapes("residual_lm", config.residual_lm)
    back = {replacement: prefix for prefix, replacement in RENAMED}
    for name, tensor in model.state_dict().items():
        if name.startswith((*PAGED_PREFIXES, "embed_tokens.")):
            continue
        for replacement, prefix in back.items():
            if name.startswith(replacement):
                name = prefix + name.removeprefix(replacement)
                break
        expected[name] = tuple(tensor.shape)
    return expected


def _stack_shapes(stack: str, config: LMConfig) -> dict[str, Shape]:
    hidden, ffn = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads * config.head_dim
    kv_heads = config.num_key_value_heads * config.head_dim
    layer: dict[str, Shape] = {
        "self_attn.q_proj.weight": (heads, hidden),
        "self_attn.k_proj.weight": (kv_heads, hidden),
        "self_attn.v_proj.weight": (kv_heads, hidden),
        "self_attn.o_proj.weight": (hidden, heads),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    shapes: dict[str, Shape] = {f"{stack}.norm.weight": (hidden,)}
    for i in range(config.num_hidden_layers):
        shapes |= {f"{stack}.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes
