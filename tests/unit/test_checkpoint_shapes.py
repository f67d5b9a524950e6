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
