"""A checkpoint as its family publishes it, for peers that know no other form."""

from __future__ import annotations

from pathlib import Path

_SAFE, _PUBLISHED = "audiovae.safetensors", "audiovae.pth"


def published_form(directory: Path, into: Path) -> Path:
    """A directory with the AudioVAE in `audiovae.pth` and no `audiovae.safetensors`.

    nano-vllm-voxcpm reads the first by name, and takes every `*.safetensors` for its language
    models' weights.

    Args:
        directory: of a checkpoint.
        into: an empty directory for links and the converted file.

    Returns:
        `directory` itself where it has that form, else `into`.
    """
    safe = directory / _SAFE
    if not safe.exists():
        return directory
    import torch
    from safetensors.torch import load_file

    for file in directory.iterdir():
        if file.name not in (_SAFE, _PUBLISHED):
            (into / file.name).symlink_to(file.resolve())
    torch.save({"state_dict": load_file(safe)}, into / _PUBLISHED)
    return into
