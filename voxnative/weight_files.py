"""Weight files of a checkpoint directory: which to read, and what is inside."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from voxnative.errors import CheckpointError

_INDEX_SUFFIX = ".index.json"


def find_weights(
    directory: Path, candidates: tuple[str, ...]
) -> list[tuple[Path, frozenset[str] | None]]:
    """Choose the weight files of one part: the first candidate that exists, whole or sharded.

    Args:
        directory: the checkpoint.
        candidates: file names, best first; NAME.index.json stands for a sharded NAME.

    Returns:
        Each file with the names an index promises in it, None without an index.

    Raises:
        CheckpointError: no candidate exists, or the index is not valid.
    """
    for candidate in candidates:
        file = directory / candidate
        if file.is_file():
            return [(file, None)]
        index = directory / (candidate + _INDEX_SUFFIX)
        if index.is_file():
            return _read_index(index)
    options = [name for candidate in candidates for name in (candidate, candidate + _INDEX_SUFFIX)]
    raise CheckpointError(
        f"no weights in {directory}; expected one of {', '.join(options)}", path=directory
    )


def iter_file(file: Path, promised: frozenset[str] | None) -> Iterator[tuple[str, Tensor, Path]]:
    """Every tensor of one weight file, read with code execution refused.

    Args:
        file: `.safetensors`, else a torch file holding a state dict, bare or as "state_dict".
        promised: the names the index lists for this file.

    Yields:
        (name, tensor, file).

    Raises:
        CheckpointError: unreadable, not plain tensors, or not what the index promises.
    """
    found = set()
    read = _iter_safetensors if file.suffix == ".safetensors" else _iter_torch
    for name, tensor in read(file):
        found.add(name)
        yield name, tensor, file
    if promised is not None and found != promised:
        differing = ", ".join(sorted(found ^ promised))
        raise CheckpointError(f"{file} and its index disagree on: {differing}", path=file)


def _read_index(index: Path) -> list[tuple[Path, frozenset[str] | None]]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        by_file: dict[str, set[str]] = {}
        for name, file in weight_map.items():
            by_file.setdefault(file, set()).add(name)
        shards = [index.parent / file for file in sorted(by_file)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{index} is no index of weight files (a JSON object with a `weight_map` of tensor"
            f" name to file name): {error!r}",
            path=index,
        ) from error
    for shard in shards:
        if shard.parent != index.parent or not shard.is_file():
            raise CheckpointError(
                f"{index} names {shard.name}, which is not in {index.parent}", path=index
            )
    return [(shard, frozenset(by_file[shard.name])) for shard in shards]


def _iter_safetensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 - not a mapping
                yield name, content.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} is not a readable safetensors file: {error}", path=file
        ) from error


def _iter_torch(file: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        # Only the zip form can be mapped instead of read whole.
        content = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{file} holds more than plain tensors, or is damaged; it is refused, because reading"
            f" it could run code: {str(error).splitlines()[0]}",
            path=file,
        ) from error
    except (OSError, EOFError, RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{file} is not a readable torch file: {error}", path=file) from error
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{file} holds a {type(content).__name__}; expected a state dict", path=file
        )
    for name, tensor in content.items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(
                f"{file}: {name} is a {type(tensor).__name__}; expected a tensor", path=file
            )
        yield name, tensor
