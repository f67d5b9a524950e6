"""Checkpoint files -> tensors, strictly: what does not fit is named, with its file.

A directory holds the language model and speech networks in `model.safetensors` or
`pytorch_model.bin` (either may be sharded behind an index file), the VAE in
`audiovae.safetensors` or `audiovae.pth`; safetensors win where both exist. Weight norm in the VAE
file is folded here, once.

Source: voxcpm/model/voxcpm2.py `VoxCPM2Model.from_local`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from voxnative.errors import CheckpointError
from voxnative.weight_files import find_weights, iter_file

NamedTensor = tuple[str, Tensor, Path]

_MAX_NAMED = 20  # tensors an error names; a wrong file would name hundreds
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_PATTERNS = ("*.json", "*.safetensors", "*.bin", "*.pth", "tokenizer*")

# (magnitude, direction) of a weight-norm pair: torch's first form and its parametrization form.
_NORM_SUFFIXES = (
    ("weight_g", "weight_v"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)


def resolve_checkpoint(model: str | Path, revision: str | None = None) -> Path:
    """Find the checkpoint directory of a path or a Hugging Face id, downloading it if needed.

    Raises:
        CheckpointError: no such directory, or a Hugging Face id that cannot be fetched.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.exists():
        raise CheckpointError(f"{path} is a file; valid: a checkpoint directory", path=path)
    if isinstance(model, Path) or not _HUB_ID.fullmatch(model) or model.startswith(("./", "../")):
        raise CheckpointError(
            f"no checkpoint directory {path}; valid: an existing directory, or a Hugging Face id"
            " such as openbmb/VoxCPM2",
            path=path,
        )
    return _download(model, revision)


def _download(hub_id: str, revision: str | None) -> Path:
    from httpx import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        found = snapshot_download(hub_id, revision=revision, allow_patterns=list(_HUB_PATTERNS))
    except (HfHubHTTPError, HFValidationError, HTTPError, OSError) as error:
        at = f" at revision {revision}" if revision else ""
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise CheckpointError(
            f"{hub_id}{at} is neither a directory here nor in the local Hugging Face cache, and"
            f" could not be downloaded: {reason}. Run `hf download {hub_id}` where there is a"
            " network (with `hf auth login` for a private model), unset HF_HUB_OFFLINE, or give"
            " the path of a directory"
        ) from error
    return Path(found)


def iter_lm_tensors(directory: Path) -> Iterator[NamedTensor]:
    """Every tensor of the language-model file or shards, one at a time, in its stored dtype.

    Yields:
        (name, tensor, file).

    Raises:
        CheckpointError: no weights, an unreadable file, or shards that contradict their index.
    """
    for file, names in find_weights(directory, ("model.safetensors", "pytorch_model.bin")):
        yield from iter_file(file, names)


def iter_vae_tensors(
    directory: Path, prefix: str = "", *, shapes_only: bool = False
) -> Iterator[NamedTensor]:
    """Every tensor of the VAE file, weight norm folded (then in fp32).

    Args:
        directory: the checkpoint.
        prefix: put in front of every name, such as "audio_vae.".
        shapes_only: tensors without data; nothing is computed.

    Yields:
        (name, tensor, file).

    Raises:
        CheckpointError: as `iter_lm_tensors`, or half a weight-norm pair.
    """
    for file, names in find_weights(directory, ("audiovae.safetensors", "audiovae.pth")):
        tensors = {name: tensor for name, tensor, _ in iter_file(file, names)}
        if shapes_only:
            tensors = {name: tensor.to("meta") for name, tensor in tensors.items()}
        for name, tensor in fold_weight_norm(tensors, file).items():
            yield prefix + name, tensor, file


def fold_weight_norm(tensors: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """Replace each weight-norm pair by its `weight` = g * v / |v|, in fp32.

    Raises:
        CheckpointError: a pair of which one tensor is missing.
    """
    folded = dict(tensors)
    for magnitude_suffix, direction_suffix in _NORM_SUFFIXES:
        stems = {
            name.removesuffix(suffix)
            for name in tensors
            for suffix in (magnitude_suffix, direction_suffix)
            if name.endswith(f".{suffix}")
        }
        for stem in stems:
            pair = (stem + magnitude_suffix, stem + direction_suffix)
            for name in pair:
                if name not in tensors:
                    raise CheckpointError(f"{file}: missing tensor {name}", path=file)
            g, v = (folded.pop(name).float() for name in pair)
            norm = torch.linalg.vector_norm(v, dim=tuple(range(1, v.ndim)), keepdim=True)
            folded[f"{stem}weight"] = v * (g / norm)
    return folded


def check_names(
    expected: Mapping[str, Sequence[int]],
    found: Mapping[str, tuple[Sequence[int], Path]],
    owner: str = "the model of config.json",
) -> None:
    """Compare a model with a checkpoint.

    Args:
        expected: shape of every tensor the model needs.
        found: shape and file of every tensor the checkpoint has.
        owner: what asks for the tensors, for the message.

    Raises:
        CheckpointError: names each missing, unexpected or mis-shaped tensor, and the file.
    """
    files = sorted({str(file) for _, file in found.values()})
    complaints = [
        f"missing tensor {name} {list(expected[name])}" for name in sorted(expected.keys() - found)
    ]
    complaints += [
        f"unexpected tensor {name} {list(found[name][0])} in {found[name][1]}"
        for name in sorted(found.keys() - expected)
    ]
    complaints += [
        f"tensor {name} in {found[name][1]} is {list(found[name][0])}, expected {list(shape)}"
        for name, shape in sorted(expected.items())
        if name in found and tuple(found[name][0]) != tuple(shape)
    ]
    if complaints:
        raise CheckpointError(
            f"the weights in {', '.join(files) or 'no file'} do not fit {owner}"
            f" ({len(complaints)} tensors): {'; '.join(complaints[:_MAX_NAMED])}"
            + (f"; and {len(complaints) - _MAX_NAMED} more" if complaints[_MAX_NAMED:] else ""),
            path=files[0] if files else None,
        )


def load_module_strict(
    module: nn.Module, tensors: Iterable[NamedTensor], *, ignore: tuple[str, ...] = ()
) -> None:
    """Copy tensors into a module, each cast to the dtype of its parameter.

    Args:
        module: filled in place.
        tensors: (name, tensor, file), names as in `module.state_dict()`.
        ignore: prefixes of names that belong to another module.

    Raises:
        CheckpointError: as `check_names`; the module may then be half filled.
    """
    targets = module.state_dict()
    found: dict[str, tuple[Sequence[int], Path]] = {}
    for name, tensor, file in tensors:
        if name.startswith(ignore):
            continue
        found[name] = (tuple(tensor.shape), file)
        if name in targets and targets[name].shape == tensor.shape:
            targets[name].copy_(tensor)
    check_names({name: tuple(target.shape) for name, target in targets.items()}, found)
