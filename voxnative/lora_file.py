"""LoRA adapters in upstream's format: a directory -> matrices by module, strictly.

A directory holds `lora_config.json` (what is adapted, rank and alpha) and
`lora_weights.safetensors` or `lora_weights.ckpt` (tensors `MODULE.lora_A` [r, in] and
`MODULE.lora_B` [out, r]). An adapted layer returns `W x + alpha / r * B A x`.

Source: voxcpm/model/voxcpm2.py `LoRAConfig`, `VoxCPM2Model._apply_lora`, `load_lora_weights`;
voxcpm 2.0.3 (source distribution) scripts/train_voxcpm_finetune.py `save_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from voxnative.checkpoint import check_names
from voxnative.checkpoint_shapes import expected_shapes
from voxnative.config import VoxConfig
from voxnative.config_section import Section, read_object
from voxnative.errors import CheckpointError
from voxnative.weight_files import find_weights, iter_file

LORA_CONFIG_FILE = "lora_config.json"
MAX_LORA_RANK = 512  # vLLM's largest
LORA_WEIGHT_FILES = ("lora_weights.safetensors", "lora_weights.ckpt")

LM_STACKS = ("base_lm.layers.", "residual_lm.layers.")
DIT_PREFIX = "feat_decoder.estimator."
PROJECTIONS = ("enc_to_lm_proj", "lm_to_dit_proj", "res_to_dit_proj", "fusion_concat_proj")
_ATTENTION = ("q_proj", "v_proj", "k_proj", "o_proj")

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class LoRASpec:
    """What `lora_config.json` says.

    Attributes:
        rank: of every pair of matrices.
        scaling: alpha / rank.
        base_model: directory or Hugging Face id that the adapter was trained on, where named.
        modules: path of each adapted module -> (out, in) of its weight.
    """

    rank: int
    scaling: float
    base_model: str | None
    modules: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class LoRAAdapter:
    """A checked adapter.

    Attributes:
        rank: of every pair of matrices.
        pairs: path of each adapted module -> (A [r, in], B [out, r]), float32; alpha / r is
            multiplied into B.
    """

    rank: int
    pairs: Mapping[str, Pair]


def adaptable_modules(config: VoxConfig) -> dict[str, tuple[int, ...]]:
    """Every linear layer that an adapter may name -> (out, in) of its weight."""
    prefixes = (*LM_STACKS, DIT_PREFIX, *(f"{name}." for name in PROJECTIONS))
    return {
        name.removesuffix(".weight"): shape
        for name, shape in expected_shapes(config).items()
        if name.startswith(prefixes) and name.endswith(".weight") and len(shape) == 2
    }


def read_lora_config(directory: Path, config: VoxConfig) -> LoRASpec:
    """Read and check `lora_config.json`.

    Args:
        directory: the adapter.
        config: of the checkpoint that it adapts.

    Raises:
        CheckpointError: no such file, not JSON, an unknown key, or a value that is not valid.
    """
    file = directory / LORA_CONFIG_FILE
    beside = (
        f"an adapter is a directory that holds {LORA_CONFIG_FILE} and"
        f" {' or '.join(LORA_WEIGHT_FILES)}"
    )
    top = Section(read_object(file, beside), "", file)
    base_model = top.optional_text("base_model")
    s = top.section("lora_config")
    top.finish()
    rank = s.integer("r", 8)
    alpha = s.number("alpha", 16)
    enabled = {part: s.flag(f"enable_{part}", False) for part in ("lm", "dit", "proj")}
    lm_targets = s.texts("target_modules_lm", _ATTENTION)
    dit_targets = s.texts("target_modules_dit", _ATTENTION)
    proj_targets = s.texts("target_proj_modules", PROJECTIONS)
    s.ignore("dropout")  # of training alone
    s.finish()
    for name in proj_targets:
        if name not in PROJECTIONS:
            raise s.error("target_proj_modules", name, ", ".join(PROJECTIONS))

    def is_adapted(module: str) -> bool:
        short = module.rpartition(".")[2]
        if module.startswith(LM_STACKS):
            return enabled["lm"] and short in lm_targets
        if module.startswith(DIT_PREFIX):
            return enabled["dit"] and short in dit_targets
        return enabled["proj"] and module in proj_targets

    known = adaptable_modules(config)
    modules = {module: shape for module, shape in known.items() if is_adapted(module)}
    if not modules:
        raise CheckpointError(
            f"{file} adapts no module of this model; valid: at least one of enable_lm, enable_dit"
            " and enable_proj, with modules that exist",
            path=file,
        )
    return LoRASpec(rank, alpha / rank, base_model, modules)


def read_adapter(directory: str | Path, config: VoxConfig, max_rank: int) -> LoRAAdapter:
    """Read an adapter and check every tensor's name, shape and values.

    Args:
        directory: holds the configuration and the weights.
        config: of the checkpoint that it adapts.
        max_rank: largest rank that the engine keeps room for.

    Raises:
        CheckpointError: names what does not fit: the rank, or each missing, unexpected or
            mis-shaped tensor with its shape, or one with values that are not finite.
    """
    directory = Path(directory).expanduser()
    spec = read_lora_config(directory, config)
    file = directory / LORA_CONFIG_FILE
    if spec.rank > max_rank:
        raise CheckpointError(
            f"key lora_config.r: {spec.rank} is not valid in {file}; valid: 1 to {max_rank}"
            " (max_lora_rank of the engine)",
            path=file,
        )
    tensors: dict[str, Tensor] = {}
    files: dict[str, Path] = {}
    for weights, names in find_weights(directory, LORA_WEIGHT_FILES):
        for name, tensor, _ in iter_file(weights, names):
            tensors[name], files[name] = tensor, weights
    expected: dict[str, tuple[int, ...]] = {}
    for module, (n_out, n_in) in spec.modules.items():
        expected[f"{module}.lora_A"] = (spec.rank, n_in)
        expected[f"{module}.lora_B"] = (n_out, spec.rank)
    check_names(
        expected,
        {name: (tuple(tensor.shape), files[name]) for name, tensor in tensors.items()},
        owner=f"{file} and the model",
    )
    for name, tensor in tensors.items():
        # Once in a KV block, such a value would reach later requests.
        if not torch.isfinite(tensor).all():
            raise CheckpointError(
                f"tensor {name} in {files[name]} holds values that are not finite", path=files[name]
            )
    pairs = {
        module: (
            tensors[f"{module}.lora_A"].float(),
            tensors[f"{module}.lora_B"].float() * spec.scaling,
        )
        for module in spec.modules
    }
    return LoRAAdapter(spec.rank, pairs)
