"""Weight files: every published form loads the same, and what does not fit is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tests.checkpoints import LM_PREFIXES, LMFile, VAEFile, load_speech_nets, write_checkpoint
from voxnative.checkpoint import (
    check_names,
    fold_weight_norm,
    iter_lm_tensors,
    iter_vae_tensors,
    load_module_strict,
    resolve_checkpoint,
)
from voxnative.config import VoxConfig
from voxnative.errors import CheckpointError
from voxnative.nn.speech_nets import SpeechNets


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in safetensors; tests that damage one write their own."""
    return write_checkpoint(tmp_path_factory.mktemp("plain"), seed=5)


def all_tensors(directory: Path) -> dict[str, Tensor]:
    pairs = chain(iter_lm_tensors(directory), iter_vae_tensors(directory, "audio_vae."))
    return {name: tensor for name, tensor, _ in pairs}


@pytest.mark.parametrize("vae_file", ["safetensors", "pth", "pth-nested"])
@pytest.mark.parametrize("lm_file", ["safetensors", "bin", "safetensors-sharded", "bin-sharded"])
def test_every_mix_of_files_holds_the_same(
    plain: Path, tmp_path: Path, lm_file: LMFile, vae_file: VAEFile
) -> None:
    write_checkpoint(tmp_path, seed=5, lm_file=lm_file, vae_file=vae_file)
    expected, found = all_tensors(plain), all_tensors(tmp_path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    load_speech_nets(tmp_path)


def test_safetensors_win_where_both_exist(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, lm_file="bin", vae_file="pth", seed=6)
    write_checkpoint(tmp_path, seed=5)
    files = {
        file.name for _, _, file in chain(iter_lm_tensors(tmp_path), iter_vae_tensors(tmp_path))
    }
    assert files == {"model.safetensors", "audiovae.safetensors"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stored_dtype_is_cast_to_the_module_s(
    plain: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    write_checkpoint(tmp_path, seed=5, dtype=dtype)
    exact, rounded = load_speech_nets(plain), load_speech_nets(tmp_path)
    weight, lower = exact.enc_to_lm_proj.weight, rounded.enc_to_lm_proj.weight
    assert lower.dtype == torch.float32
    assert torch.equal(lower, weight.to(dtype).float())
    half = SpeechNets(VoxConfig.from_dir(plain)).to(dtype)
    tensors = chain(iter_lm_tensors(plain), iter_vae_tensors(plain, "audio_vae."))
    load_module_strict(half, tensors, ignore=LM_PREFIXES)
    assert torch.equal(half.enc_to_lm_proj.weight, weight.to(dtype))


def test_weight_norm_is_folded_as_torch_computes_it() -> None:
    conv = weight_norm(nn.ConvTranspose1d(6, 4, 5))
    with torch.no_grad():
        conv.parametrizations.weight.original0.mul_(1.7)
    names = {"original0": "weight_g", "original1": "weight_v"}
    state = {f"up.{name}": tensor for name, tensor in conv.state_dict().items()}
    first_form = {
        name.replace("parametrizations.weight.", "").replace(old, new): tensor
        for name, tensor in state.items()
        for old, new in names.items()
        if name.endswith(old)
    } | {"up.bias": conv.bias}
    for form in (state, first_form):
        folded = fold_weight_norm(form, Path("audiovae.pth"))
        assert folded.keys() == {"up.weight", "up.bias"}
        assert torch.allclose(folded["up.weight"], conv.weight, atol=1e-7)


def test_half_a_weight_norm_pair_is_named(tmp_path: Path) -> None:
    file = write_checkpoint(tmp_path, seed=5) / "audiovae.safetensors"
    tensors = load_file(file)
    del tensors["encoder.fc_mu.weight_g"]
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"audiovae\.safetensors: missing .*fc_mu\.weight_g"):
        list(iter_vae_tensors(tmp_path))


def damaged(directory: Path, change: str) -> None:
    """Remove, add or reshape one tensor of `model.safetensors`."""
    file = write_checkpoint(directory, seed=5) / "model.safetensors"
    tensors = load_file(file)
    if change == "missing":
        del tensors["lm_to_dit_proj.bias"]
    elif change == "unexpected":
        tensors["lm_to_dit_proj.lora_A"] = torch.zeros(2, 3)
    else:
        tensors["lm_to_dit_proj.weight"] = torch.zeros(2, 3)
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", r"missing tensor lm_to_dit_proj\.bias \[80\]"),
        (
            "unexpected",
            r"unexpected tensor lm_to_dit_proj\.lora_A \[2, 3\] in .*model\.safetensors",
        ),
        (
            "mis-shaped",
            r"lm_to_dit_proj\.weight in .*model\.safetensors is \[2, 3\], .* \[80, 96\]",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, change: str, message: str) -> None:
    damaged(tmp_path, change)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_speech_nets(tmp_path)
    assert "model.safetensors" in str(caught.value)
    assert "(1 tensors)" in str(caught.value)


def test_check_names_lists_everything_at_once() -> None:
    file = Path("model.safetensors")
    check_names({"a": (1,)}, {"a": ((1,), file)})
    with pytest.raises(CheckpointError) as caught:
        check_names({"a": (1,), "b": (2,)}, {"b": ((3,), file), "c": ((4,), file)})
    for part in (
        "missing tensor a [1]",
        "unexpected tensor c [4]",
        "b in model.safetensors is [3]",
    ):
        assert part in str(caught.value)
    with pytest.raises(CheckpointError, match="no file"):
        check_names({"a": (1,)}, {})


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected one of model\.safetensors, .*index\.json"):
        list(iter_lm_tensors(tmp_path))
    with pytest.raises(CheckpointError, match=r"audiovae\.pth"):
        list(iter_vae_tensors(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("content", [b"", b"not a weight file at all", None], ids=str)
def test_damaged_file(tmp_path: Path, name: str, content: bytes | None) -> None:
    form: LMFile = "safetensors" if name.endswith("safetensors") else "bin"
    file = write_checkpoint(tmp_path, lm_file=form) / name
    file.write_bytes(file.read_bytes()[:5000] if content is None else content)
    with pytest.raises(CheckpointError, match=name) as caught:
        list(iter_lm_tensors(tmp_path))
    assert caught.value.path == file


class RunsCode:
    """Unpickling this writes a file."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.witness),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "audiovae.pth"])
def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, name: str) -> None:
    witness = tmp_path / "witness"
    torch.save({"x": torch.zeros(1), "y": RunsCode(witness)}, tmp_path / name)
    read = iter_lm_tensors if name == "pytorch_model.bin" else iter_vae_tensors
    with pytest.raises(CheckpointError, match=f"{name} holds more than plain tensors"):
        list(read(tmp_path))
    assert not witness.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [([torch.zeros(1)], "holds a list"), ({"epoch": 3}, "epoch is a int; expected a tensor")],
)
def test_a_torch_file_that_is_no_state_dict(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=message):
        list(iter_lm_tensors(tmp_path))


def test_torch_s_older_file_format_loads(tmp_path: Path) -> None:
    tensors = {"x": torch.arange(3.0)}
    torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    ((name, tensor, _),) = iter_lm_tensors(tmp_path)
    assert name == "x"
    assert torch.equal(tensor, tensors["x"])


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "is no index of weight files"),
        ('{"weights": {}}', "weight_map"),
        ('{"weight_map": {"x": "gone.safetensors"}}', "names gone.safetensors, which is not in"),
        ('{"weight_map": {"x": "../model.safetensors"}}', "which is not in"),
    ],
)
def test_broken_index(tmp_path: Path, index: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=message):
        list(iter_lm_tensors(tmp_path))


def test_shard_that_contradicts_the_index(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, lm_file="safetensors-sharded")
    file = tmp_path / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    file.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="disagree on: ghost"):
        list(iter_lm_tensors(tmp_path))


def test_resolve_a_directory(tmp_path: Path) -> None:
    assert resolve_checkpoint(tmp_path) == tmp_path.resolve()
    assert resolve_checkpoint(str(tmp_path)) == tmp_path.resolve()


@pytest.mark.parametrize("model", ["./gone", "/gone/away", "gone", "a/b/c", "~/gone", Path("a/b")])
def test_resolve_names_a_path_that_does_not_exist(model: str | Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint directory .*Hugging Face id"):
        resolve_checkpoint(model)


def test_resolve_refuses_a_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(CheckpointError, match="is a file; valid: a checkpoint directory"):
        resolve_checkpoint(file)


def in_fresh_cache(cache: Path, code: str) -> str:
    """Output of Python code that sees no network and the given Hugging Face cache."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache)}
    environment.pop("HF_HUB_CACHE", None)
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


RESOLVE = """
from voxnative.checkpoint import resolve_checkpoint
from voxnative.errors import CheckpointError
try:
    print(resolve_checkpoint("openbmb/VoxCPM2"))
except CheckpointError as error:
    print("CheckpointError:", error)
"""


def test_hub_id_offline_and_not_cached_says_what_to_do(tmp_path: Path) -> None:
    output = in_fresh_cache(tmp_path, RESOLVE)
    assert output.startswith("CheckpointError: openbmb/VoxCPM2 ")
    for advice in ("hf download openbmb/VoxCPM2", "HF_HUB_OFFLINE", "path of a directory"):
        assert advice in output


def test_hub_id_offline_and_cached_is_found(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--openbmb--VoxCPM2"
    snapshot = repository / "snapshots" / ("0" * 40)
    write_checkpoint(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert in_fresh_cache(tmp_path, RESOLVE).strip() == str(snapshot)
