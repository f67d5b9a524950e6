"""Weights are compared with the configuration before an engine starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.checkpoints import write_checkpoint
from voxnative.checkpoint_shapes import expected_shapes, iter_tensors, verify_checkpoint
from voxnative.config import VoxConfig
from voxnative.errors import CheckpointError
from voxnative.offline import VoxNative


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


@pytest.mark.parametrize("architecture", ["voxcpm2", "voxcpm"])
def test_expected_is_what_the_reference_saves(architecture: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", architecture=architecture)
    found = {name: tuple(tensor.shape) for name, tensor, _ in iter_tensors(checkpoint)}
    assert expected_shapes(VoxConfig.from_dir(checkpoint)) == found


def test_shapes_are_known_without_computing(tmp_path: Path) -> None:
    """Weight-norm pairs are folded by a product, which torch gives to several threads."""
    directory = write_checkpoint(tmp_path / "model", vae_file="pth")
    whole = {name: tuple(tensor.shape) for name, tensor, _ in iter_tensors(directory)}
    bare = {name: tensor for name, tensor, _ in iter_tensors(directory, shapes_only=True)}
    assert {name: tuple(tensor.shape) for name, tensor in bare.items()} == whole
    vae = [tensor for name, tensor in bare.items() if name.startswith("audio_vae.")]
    assert len(vae) > 10
    assert all(tensor.is_meta for tensor in vae)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("missing", r"missing tensor stop_head\.weight \[2, 96\]"),
        ("unexpected", r"unexpected tensor surplus \[2, 96\] in .*model\.safetensors"),
        ("shape", r"tensor stop_head\.weight in .*model\.safetensors is \[96, 2\], expected"),
    ],
)
def test_a_wrong_tensor_is_named_before_the_engine_starts(
    change: str, complaint: str, checkpoint: Path
) -> None:
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    head = tensors.pop("stop_head.weight")
    if change == "unexpected":
        tensors |= {"stop_head.weight": head, "surplus": head.clone()}
    elif change == "shape":
        tensors["stop_head.weight"] = head.T.contiguous()
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=complaint):
        VoxNative(checkpoint)


def test_the_shipped_checkpoint_is_complete(tiny_dir: Path, tiny_config: VoxConfig) -> None:
    verify_checkpoint(tiny_dir, tiny_config)
