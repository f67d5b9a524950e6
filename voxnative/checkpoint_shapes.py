"""What a checkpoint must hold: the name and full shape of every tensor, from its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from voxnative.checkpoint import NamedTensor, check_names, iter_lm_tensors, iter_vae_tensors
from voxnative.config import VoxConfig
from voxnative.config_lm import LMConfig
from voxnative.nn.heads import ScalarQuantizer, StopHead
from voxnative.nn.speech_nets import SpeechNets

Shape = tuple[int, ...]


def verify_checkpoint(directory: Path, config: VoxConfig) -> None:
    """Compare a directory's weight files with its configuration, before any engine starts.

    Nothing is computed with the tensors: a process that has used torch's OpenMP threads cannot
    be forked into an engine that will use them too.

    Raises:
        CheckpointError: names each missing, unexpected or mis-shaped tensor, and the file.
    """
    tensors = iter_tensors(directory, shapes_only=True)
    found = {name: (tuple(t.shape), file) for name, t, file in tensors}
    check_names(expected_shapes(config), found)


def iter_tensors(directory: Path, *, shapes_only: bool = False) -> Iterator[NamedTensor]:
    """Every tensor of a checkpoint, one at a time; the AudioVAE's with ``audio_vae.`` in front.

    Args:
        directory: the checkpoint.
        shapes_only: the AudioVAE's tensors without data, for nothing to be computed.
    """
    yield from iter_lm_tensors(directory)
    yield from iter_vae_tensors(directory, "audio_vae.", shapes_only=shapes_only)


def expected_shapes(config: VoxConfig) -> dict[str, Shape]:
    """Names and shapes of all tensors; the AudioVAE's with ``audio_vae.`` in front.

    Source: voxcpm/model/voxcpm2.py ``VoxCPM2Model.__init__``, voxcpm/model/voxcpm.py
    ``VoxCPMModel.__init__``.
    """
    lm = config.lm
    shapes: dict[str, Shape] = {"base_lm.embed_tokens.weight": (lm.vocab_size, lm.hidden_size)}
    shapes |= _stack_shapes("base_lm", lm) | _stack_shapes("residual_lm", config.residual_lm)
    hidden = lm.hidden_size
    with torch.device("meta"):
        modules: list[tuple[str, nn.Module]] = [
            ("", SpeechNets(config)),
            ("", StopHead(hidden)),
            ("fsq_layer.", ScalarQuantizer(hidden, config.fsq_latent_dim, config.fsq_scale)),
        ]
        if config.family.projects_fusion:
            modules.append(("fusion_concat_proj.", nn.Linear(2 * hidden, hidden)))
    for prefix, module in modules:
        shapes |= {prefix + name: tuple(t.shape) for name, t in module.state_dict().items()}
    return shapes


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
