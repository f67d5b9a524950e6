"""Adapters in the worker's model: slots of vLLM's layers and of the networks behind the LMs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import (
    destroy_distributed_environment,
    destroy_model_parallel,
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.lora.layers import LoRAMapping
from vllm.lora.request import LoRARequest
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.plugins import load_general_plugins

from tests.adapters import ATTENTION, EVERYWHERE, MLP, write_adapter
from tests.checkpoints import write_checkpoint
from voxnative.config import VoxConfig
from voxnative.engine.lora_manager import SpeechLoRARunner, SpeechWorkerLoRAManager
from voxnative.engine.model import VoxCPM2ForSpeech
from voxnative.engine.start import engine_args
from voxnative.errors import CheckpointError

NAMES = {1: "everything", 2: "flow", 3: "words"}
FIELDS = {
    "everything": {"target_modules_lm": ATTENTION + MLP, "r": 4, "alpha": 6, **EVERYWHERE},
    "flow": {"enable_dit": True, "r": 2},
    "words": {"enable_lm": True, "r": 8, "target_modules_lm": ["k_proj", "down_proj"]},
}
Q_PROJ = "feat_decoder.estimator.decoder.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("manager") / "checkpoint")


@pytest.fixture(scope="module")
def requests(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, LoRARequest]:
    folder = tmp_path_factory.mktemp("adapters")
    for i, name in NAMES.items():
        write_adapter(folder / name, checkpoint, seed=i, **FIELDS[name])
    return {i: LoRARequest(name, i, str(folder / name)) for i, name in NAMES.items()}


@pytest.fixture(scope="module")
def vllm_config(checkpoint: Path) -> VllmConfig:
    """Two adapters in a batch, three in memory."""
    load_general_plugins()
    args = engine_args(
        checkpoint,
        VoxConfig.from_dir(checkpoint),
        dtype="float32",
        max_num_seqs=4,
        max_model_len=64,
        kv_cache_memory_bytes=1 << 20,
        enable_lora=True,
        max_loras=2,
        max_cpu_loras=3,
        max_lora_rank=8,
    )
    return args.create_engine_config()


@pytest.fixture(scope="module")
def runner(
    vllm_config: VllmConfig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SpeechLoRARunner]:
    """The part of a model runner that holds the adapters, in this process."""
    store = tmp_path_factory.mktemp("distributed") / "store"
    with set_current_vllm_config(vllm_config):
        init_distributed_environment(1, 0, f"file://{store}", 0, backend="gloo")
        initialize_model_parallel(backend="gloo")
        model = VoxCPM2ForSpeech(vllm_config=vllm_config)
        model.load_weights(())
        model.requires_grad_(False)
        process_weights_after_loading(model, vllm_config.model_config, torch.device("cpu"))
        runner = SpeechLoRARunner()
        loaded = runner.load_lora_model(model, vllm_config, torch.device("cpu"))
    assert loaded is model
    yield runner
    destroy_model_parallel()
    destroy_distributed_environment()


@pytest.fixture
def manager(
    runner: SpeechLoRARunner, requests: dict[int, LoRARequest]
) -> Iterator[SpeechWorkerLoRAManager]:
    yield runner.lora_manager
    runner.lora_manager.remove_all_adapters()


@pytest.fixture(scope="module")
def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model.safetensors")


def model_of(manager: SpeechWorkerLoRAManager) -> VoxCPM2ForSpeech:
    return manager._adapter_manager.model


def activate(
    manager: SpeechWorkerLoRAManager, requests: dict[int, LoRARequest], tokens: list[int]
) -> None:
    """As vLLM does before a step with these adapters by token, 0 is none."""
    wanted = {requests[i] for i in tokens if i}
    manager.set_active_adapters(wanted, LoRAMapping(tuple(tokens), tuple(tokens), True))


def expected_rows(
    weights: dict[str, torch.Tensor],
    requests: dict[int, LoRARequest],
    tokens: list[int],
    module: str,
    x: torch.Tensor,
) -> torch.Tensor:
    """``(W + alpha / r * B A) x`` by token."""
    rows = []
    for token, i in zip(x, tokens, strict=True):
        weight = weights[f"{module}.weight"]
        if i:
            lora = load_file(Path(requests[i].lora_path) / "lora_weights.safetensors")
            fields = FIELDS[NAMES[i]]
            if f"{module}.lora_A" in lora:
                product = lora[f"{module}.lora_B"] @ lora[f"{module}.lora_A"]
                weight = weight + fields.get("alpha", 16) / fields["r"] * product
        rows.append(weight @ token)
    return torch.stack(rows) + weights.get(f"{module}.bias", torch.tensor(0.0))


@pytest.mark.parametrize("tokens", [[1, 0, 3, 1], [2, 2, 0, 1], [0, 0, 0, 0]])
@pytest.mark.parametrize("stack", ["base_lm.layers.1", "residual_lm.layers.0"])
def test_layers_of_both_language_models(
    stack: str,
    tokens: list[int],
    manager: SpeechWorkerLoRAManager,
    requests: dict[int, LoRARequest],
    weights: dict[str, torch.Tensor],
) -> None:
    activate(manager, requests, tokens)
    layer = model_of(manager).get_submodule(stack)
    torch.manual_seed(0)

    def check(got: torch.Tensor, modules: list[str], x: torch.Tensor) -> None:
        parts = [
            expected_rows(weights, requests, tokens, f"{stack}.{module}", x) for module in modules
        ]
        assert (got - torch.cat(parts, dim=-1)).abs().max() < 1e-5

    x = torch.randn(4, 96)
    qkv = [f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj")]
    check(layer.self_attn.qkv_proj(x)[0], qkv, x)
    check(layer.mlp.gate_up_proj(x)[0], ["mlp.gate_proj", "mlp.up_proj"], x)
    x = torch.randn(4, 128)
    check(layer.self_attn.o_proj(x)[0], ["self_attn.o_proj"], x)
    x = torch.randn(4, 160)
    check(layer.mlp.down_proj(x)[0], ["mlp.down_proj"], x)


def test_the_projection_between_the_language_models(
    manager: SpeechWorkerLoRAManager,
    requests: dict[int, LoRARequest],
    weights: dict[str, torch.Tensor],
) -> None:
    tokens = [2, 1, 0, 1]
    activate(manager, requests, tokens)
    x = torch.randn(4, 192)
    got = model_of(manager).fusion_concat_proj(x)
    expected = expected_rows(weights, requests, tokens, "fusion_concat_proj", x)
    assert (got - expected).abs().max() < 1e-5


def test_layers_behind_the_language_models_have_vllms_slots(
    runner: SpeechLoRARunner,
    manager: SpeechWorkerLoRAManager,
    requests: dict[int, LoRARequest],
    weights: dict[str, torch.Tensor],
) -> None:
    model = model_of(manager)
    layer = model.speech.get_submodule(Q_PROJ)
    x = torch.randn(3, 80)
    for tokens in ([1, 2, 0], [3, 2, 0], [0, 1, 3], [2, 2, 1]):  # slots are given anew each time
        activate(manager, requests, tokens)
        slots = [runner.net_slot(requests.get(i)) for i in tokens]
        assert manager._adapter_manager.token_slots().tolist() == slots
        with model.speech.adapter_rows.using(torch.tensor(slots)):
            got = layer(x)
        expected = expected_rows(weights, requests, tokens, Q_PROJ, x)
        assert (got - expected).abs().max() < 1e-5


def test_given_patches_are_embedded_by_the_adapter_of_their_request(
    manager: SpeechWorkerLoRAManager, requests: dict[int, LoRARequest]
) -> None:
    """The encoder cache holds what the base model makes; adapters start from the patches."""
    model = model_of(manager)
    config = model.config
    torch.manual_seed(1)
    patches = torch.randn(3, config.patch_size, config.feat_dim)
    base = model.speech.embed_patches(patches)
    cached = torch.cat([base, patches.flatten(1)], dim=1)
    ids = torch.tensor([5, *[config.audio_patch_id] * 3])
    is_patch = torch.tensor([False, True, True, True])

    def embedded(tokens: list[int]) -> torch.Tensor:
        activate(manager, requests, tokens)
        return model.embed_input_ids(ids, [cached], is_multimodal=is_patch)[1:]

    assert torch.equal(embedded([2, 2, 2, 0]), base)  # "flow" leaves the projection alone
    mixed = embedded([1, 1, 0, 2])
    slot = manager._adapter_manager.net_slot(1)
    with model.speech.adapter_rows.using(torch.tensor([slot] * 3)):
        adapted = model.speech.embed_patches(patches)
    assert (mixed[0] - adapted[0]).abs().max() < 1e-5
    assert torch.equal(mixed[1:], base[1:])
    assert (adapted - base).abs().mean() > 0.01


def test_removal_frees_the_memory_and_the_slot(
    manager: SpeechWorkerLoRAManager, requests: dict[int, LoRARequest]
) -> None:
    activate(manager, requests, [1, 2])
    layer = model_of(manager).speech.get_submodule(Q_PROJ).low_rank
    assert len(layer.taken) == 2
    assert manager.list_adapters() == {1, 2}
    assert manager.remove_adapter(1)
    assert len(layer.taken) == 1
    assert manager.list_adapters() == {2}
    emptied = ({1, 2} - layer.taken).pop()
    assert torch.count_nonzero(layer.stack_a[emptied]) == 0


def test_an_adapter_that_does_not_fit_leaves_the_others(
    manager: SpeechWorkerLoRAManager,
    requests: dict[int, LoRARequest],
    checkpoint: Path,
    tmp_path: Path,
) -> None:
    activate(manager, requests, [1])
    write_adapter(tmp_path / "wide", checkpoint, seed=1, r=16, enable_lm=True)
    with pytest.raises(CheckpointError, match=r"lora_config\.r: 16 is not valid .* 1 to 8"):
        manager.add_adapter(LoRARequest("wide", 9, str(tmp_path / "wide")))
    assert manager.list_adapters() == {1}
