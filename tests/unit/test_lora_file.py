"""Adapters in upstream's format: read with alpha / r, and what does not fit is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.adapters import EVERYWHERE, write_adapter
from tests.checkpoints import write_checkpoint
from voxnative.config import VoxConfig
from voxnative.errors import CheckpointError
from voxnative.lora_file import LORA_CONFIG_FILE, adaptable_modules, read_adapter

WEIGHTS = "lora_weights.safetensors"
Q_PROJ = "base_lm.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("lora") / "checkpoint")


@pytest.fixture(scope="module")
def config(checkpoint: Path) -> VoxConfig:
    return VoxConfig.from_dir(checkpoint)


@pytest.fixture
def adapter(checkpoint: Path, tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", checkpoint, seed=1, r=4, alpha=6, **EVERYWHERE)


def change_config(adapter: Path, **changes: Any) -> None:
    file = adapter / LORA_CONFIG_FILE
    content = json.loads(file.read_text())
    content["lora_config"] |= changes
    file.write_text(json.dumps(content))


def change_weights(adapter: Path, changes: dict[str, torch.Tensor | None]) -> None:
    weights = load_file(adapter / WEIGHTS) | changes
    save_file({name: t for name, t in weights.items() if t is not None}, adapter / WEIGHTS)


def test_every_module_that_upstream_adapts_is_read(adapter: Path, config: VoxConfig) -> None:
    stored = load_file(adapter / WEIGHTS)
    read = read_adapter(adapter, config, max_rank=8)
    assert read.rank == 4
    assert {f"{module}.lora_{x}" for module in read.pairs for x in "AB"} == stored.keys()
    for module, (a, b) in read.pairs.items():
        assert torch.equal(a, stored[f"{module}.lora_A"])
        assert torch.equal(b, stored[f"{module}.lora_B"] * 1.5)
    # Stacks with attention (3 + 2 layers), the DiT's (2 layers) and four projections.
    assert len(read.pairs) == 4 * (3 + 2 + 2) + 4
    assert read.pairs.keys() < adaptable_modules(config).keys()


def test_a_torch_file_reads_the_same(checkpoint: Path, tmp_path: Path, config: VoxConfig) -> None:
    forms = [
        read_adapter(
            write_adapter(tmp_path / form, checkpoint, seed=2, form=form, r=2, enable_dit=True),
            config,
            max_rank=8,
        ).pairs
        for form in ("safetensors", "ckpt")
    ]
    assert forms[0].keys() == forms[1].keys()
    for module, pair in forms[0].items():
        assert all(torch.equal(x, y) for x, y in zip(pair, forms[1][module], strict=True))


def test_a_tensor_of_another_shape_is_named_with_both(adapter: Path, config: VoxConfig) -> None:
    change_weights(adapter, {f"{Q_PROJ}.lora_B": torch.zeros(100, 4)})
    message = rf"{Q_PROJ}\.lora_B in .*{WEIGHTS} is \[100, 4\], expected \[128, 4\]"
    with pytest.raises(CheckpointError, match=message):
        read_adapter(adapter, config, max_rank=8)


def test_another_rank_than_the_configuration_says(adapter: Path, config: VoxConfig) -> None:
    change_config(adapter, r=8)
    message = r"\(64 tensors\).*lora_A in .* is \[4, 96\], expected \[8, 96\]"
    with pytest.raises(CheckpointError, match=message):
        read_adapter(adapter, config, max_rank=8)


def test_missing_and_unexpected_tensors_are_named(adapter: Path, config: VoxConfig) -> None:
    change_weights(
        adapter, {f"{Q_PROJ}.lora_A": None, "feat_encoder.in_proj.lora_A": torch.zeros(4, 16)}
    )
    message = (
        rf"missing tensor {Q_PROJ}\.lora_A \[4, 96\];"
        r" unexpected tensor feat_encoder\.in_proj\.lora_A \[4, 16\]"
    )
    with pytest.raises(CheckpointError, match=message):
        read_adapter(adapter, config, max_rank=8)


def test_an_adapter_of_a_larger_model(tmp_path: Path, adapter: Path) -> None:
    wider = write_checkpoint(tmp_path / "wider", lm_config={"hidden_size": 160})
    message = r"is \[4, 96\], expected \[4, 160\]"
    with pytest.raises(CheckpointError, match=message):
        read_adapter(adapter, VoxConfig.from_dir(wider), max_rank=8)


def test_values_that_are_not_finite(adapter: Path, config: VoxConfig) -> None:
    tensor = torch.zeros(4, 96)
    tensor[1, 2] = float("nan")
    change_weights(adapter, {f"{Q_PROJ}.lora_A": tensor})
    with pytest.raises(CheckpointError, match=rf"tensor {Q_PROJ}\.lora_A .* not finite"):
        read_adapter(adapter, config, max_rank=8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 16}, r"lora_config\.r: 16 is not valid in .*; valid: 1 to 8"),
        ({"r": 0}, r"lora_config\.r: 0 is not valid"),
        ({"alpha": "16"}, r"lora_config\.alpha: '16' is not valid .* finite number"),
        ({"rank": 4}, r"unknown key lora_config\.rank .*; valid: .*\br\b"),
        ({"target_modules_lm": "q_proj"}, r"target_modules_lm: 'q_proj' is not valid"),
        ({"target_proj_modules": ["stop_proj"]}, r"'stop_proj' is not valid .* enc_to_lm_proj"),
        (
            {"enable_lm": False, "enable_dit": False, "enable_proj": False},
            "adapts no module of this model",
        ),
    ],
)
def test_a_configuration_that_is_not_valid(
    changes: dict[str, Any], message: str, adapter: Path, config: VoxConfig
) -> None:
    change_config(adapter, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_adapter(adapter, config, max_rank=8)


def test_files_that_are_missing_or_no_adapter(adapter: Path, config: VoxConfig) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read .*lora_config\.json"):
        read_adapter(adapter / "nowhere", config, max_rank=8)
    (adapter / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"no weights in .*lora_weights\.ckpt"):
        read_adapter(adapter, config, max_rank=8)
    (adapter / LORA_CONFIG_FILE).write_text("[]")
    with pytest.raises(CheckpointError, match="does not hold a JSON object"):
        read_adapter(adapter, config, max_rank=8)
