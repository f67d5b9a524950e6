"""Adapters around Model Runner V2's state, with vLLM's own classes on a CPU.

The runner's part, which needs a GPU, is played by its LoRA mixin and batches built by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from vllm import AsyncEngineArgs
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import (
    cleanup_dist_env_and_memory,
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.lora.request import LoRARequest
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.lora_utils import (
    LoraState,
    create_lora_capture_hook,
    get_lora_capture_cases,
)
from vllm.v1.worker.gpu.mm.encoder_cache import EncoderCache
from vllm.v1.worker.lora_model_runner_mixin import LoRAModelRunnerMixin

from tests.checkpoints import load_speech_nets
from tests.perf.full_size import write_random_adapter
from tests.unit.test_model_state import Runner
from voxnative.config import VoxConfig
from voxnative.decode_step import decode_step
from voxnative.engine.engine_input import sampling_params, step_params
from voxnative.engine.lora_manager import SpeechLoRARunner
from voxnative.engine.model import VoxCPM2ForSpeech
from voxnative.engine.model_state import SpeechModelState
from voxnative.lora_file import DIT_PREFIX, PROJECTIONS, read_adapter
from voxnative.nn.lora import NetAdapters
from voxnative.nn.speech_nets import SpeechNets
from voxnative.params import SpeechParams
from voxnative.prompt import SpeechPrompt, build_prompt
from voxnative.request_state import RequestStates
from voxnative.tokenizer import TextTokenizer

N_ADAPTERS, RANK = 3, 4
CPU = torch.device("cpu")


class LoRAPart(SpeechLoRARunner, LoRAModelRunnerMixin):
    """What a model runner does about adapters."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.lora_config = vllm_config.lora_config


class LoRARunner(Runner):
    """As the runner around the state, with adapters."""

    def __init__(self, state: SpeechModelState, model: VoxCPM2ForSpeech, part: LoRAPart) -> None:
        super().__init__(state, model)
        self.part, self.lora_state = part, LoraState(4)

    def set_adapters(self, batch: InputBatch) -> list[int]:
        inputs = self.lora_state.make_lora_inputs(
            batch.req_ids, batch.idx_mapping_np, batch.num_scheduled_tokens
        )
        self.part._set_active_loras(*inputs)
        requests = self.lora_state.lora_requests
        return [self.part.net_slot(requests.get(request_id)) for request_id in batch.req_ids]


@pytest.fixture(scope="module")
def requests(
    tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, LoRARequest | None]:
    """One adapter more than a batch may hold; "base" is none."""
    folder, config = tmp_path_factory.mktemp("adapters"), VoxConfig.from_dir(tiny_dir)
    found: dict[str, LoRARequest | None] = {"base": None}
    for i in range(1, N_ADAPTERS + 1):
        name = f"adapter {i}"
        path = write_random_adapter(folder / str(i), config, seed=i, rank=RANK)
        found[name] = LoRARequest(name, i, str(path))
    return found


@pytest.fixture(scope="module")
def vllm_config(tiny_dir: Path) -> VllmConfig:
    args = AsyncEngineArgs(
        str(tiny_dir),
        dtype="float32",
        max_num_seqs=4,
        kv_cache_memory_bytes=1 << 26,
        enable_lora=True,
        max_loras=2,
        max_cpu_loras=3,
        max_lora_rank=8,
    )
    return args.create_engine_config()


@pytest.fixture(scope="module")
def part(vllm_config: VllmConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoRAPart]:
    store = tmp_path_factory.mktemp("store") / "file"
    with set_current_vllm_config(vllm_config):
        init_distributed_environment(1, 0, f"file://{store}", 0, backend="gloo")
        initialize_model_parallel()
        model = VoxCPM2ForSpeech(vllm_config=vllm_config)
        model.load_weights([])
        model.requires_grad_(False)
        process_weights_after_loading(model, vllm_config.model_config, CPU)
        part = LoRAPart(vllm_config)
        part.load_lora_model(model, vllm_config, CPU)
        yield part
    cleanup_dist_env_and_memory()


@pytest.fixture(scope="module")
def state(vllm_config: VllmConfig, part: LoRAPart) -> SpeechModelState:
    model = part.lora_manager._adapter_manager.model
    return SpeechModelState(vllm_config, model, EncoderCache(), CPU)


@pytest.fixture
def runner(state: SpeechModelState, part: LoRAPart) -> Iterator[LoRARunner]:
    yield LoRARunner(state, part.lora_manager._adapter_manager.model, part)
    for request_id in list(state.side_path.live):
        state.end_request(request_id)
    state.encoder_cache.reset_encoder_cache()
    part.lora_manager.remove_all_adapters()


@pytest.fixture(scope="module")
def nets(tiny_dir: Path, requests: dict[str, LoRARequest | None]) -> SpeechNets:
    """The networks as `decode_step` takes them, adapter i in slot i."""
    nets = load_speech_nets(tiny_dir).requires_grad_(False)
    adapters = NetAdapters(
        nets,
        nets.adapter_rows,
        lambda path: path.startswith(DIT_PREFIX) or path in PROJECTIONS,
        N_ADAPTERS,
        RANK,
    )
    for request in requests.values():
        if request is not None:
            pairs = read_adapter(request.lora_path, VoxConfig.from_dir(tiny_dir), RANK).pairs
            adapters.write(request.lora_int_id, pairs)
    return nets


class Oracle:
    """One request alone, by `decode_step`; its parameters are those of `Runner.admit`."""

    def __init__(self, nets: SpeechNets, config: VoxConfig, adapter: int) -> None:
        params = step_params(sampling_params(SpeechParams(seed=7, timesteps=3), 64, config))
        self.nets = nets
        self.states = RequestStates(config, nets.audio_vae, 1, 16, torch.float32, CPU)
        self.states.add("x", params)
        self.states.adapter[0] = adapter

    def step(self, hidden: torch.Tensor) -> torch.Tensor:
        (wave,) = decode_step(self.nets, self.states, [0], *hidden.unsqueeze(0).chunk(2, dim=-1))
        return wave


def stacks(part: LoRAPart) -> NetAdapters:
    return part.lora_manager._adapter_manager.net_adapters


def test_vllms_adapters_for_warm_up_and_capture(vllm_config: VllmConfig, part: LoRAPart) -> None:
    """They have no part in the networks behind the language models, and leave nothing there."""
    hook = create_lora_capture_hook(part.lora_config, part)
    with part.maybe_setup_dummy_loras(part.lora_config):
        for case in get_lora_capture_cases(part.lora_config, vllm_config.compilation_config):
            hook(case, 4, 8)
            found = set(part.lora_manager._adapter_manager.token_ids)
            assert found == ({1, 2} if case else {0})
        assert part.lora_manager.list_adapters() == {1, 2}
    with part.maybe_dummy_run_with_lora(part.lora_config, np.array([3, 3]), None, True, 2):
        slots = part.lora_manager._adapter_manager.token_slots().tolist()
        assert slots in ([1, 1, 1, 2, 2, 2], [2, 2, 2, 1, 1, 1])
    assert part.lora_manager.list_adapters() == set()
    assert all(not layer.taken for layer in stacks(part).layers.values())
    assert not any(layer.stack_b.any() for layer in stacks(part).layers.values())


def test_more_adapters_than_slots_and_a_preemption(
    runner: LoRARunner,
    requests: dict[str, LoRARequest | None],
    nets: SpeechNets,
    tiny_tokenizer: TextTokenizer,
) -> None:
    """Adapters come into slots that others leave; each request speaks with its own all along."""
    config = runner.config
    prompt: SpeechPrompt = build_prompt("good morning.", config=config, tokenizer=tiny_tokenizer)
    n = len(prompt.token_ids)
    adapter_of = {"a": "adapter 1", "b": "base", "c": "adapter 2", "d": "adapter 3"}
    oracles = {}
    for name, adapter in adapter_of.items():
        request = requests[adapter]
        runner.submit(name, prompt)
        oracles[name] = Oracle(nets, config, 0 if request is None else request.lora_int_id)

    def admit(name: str, row: int, computed: int = 0) -> None:
        runner.admit(name, row, computed)
        runner.lora_state.add_request(name, row, requests[adapter_of[name]])

    largest, used = 0.0, []
    for number, scheduled in enumerate(
        (
            {"a": n, "b": n, "c": n},
            {"a": 1, "b": 1, "c": 1},
            {"c": 1, "d": n},  # "a" is preempted, its adapter's slot goes to that of "d"
            {"b": 1, "a": n + 2},  # it comes back in another row
            {"a": 1, "d": 1, "b": 1},
        )
    ):
        if number == 0:
            for row, name in enumerate("abc"):
                admit(name, row)
        if number == 2:
            runner.state.park_request("a")
            runner.state.remove_request("a")
            runner.lora_state.remove_request("a")
            admit("d", 0)
        if number == 3:
            admit("a", 3)
        torch.manual_seed(number)
        _, made = runner.step(**scheduled)
        names = sorted(scheduled, key=scheduled.__getitem__)
        torch.manual_seed(number)
        hidden = torch.randn(sum(scheduled.values()), 2 * config.lm.hidden_size)
        ends = np.cumsum([scheduled[name] for name in names])
        assert sorted(made) == sorted(names)
        for name, end in zip(names, ends, strict=True):
            expected = oracles[name].step(hidden[end - 1])
            largest = max(largest, float((made[name] - expected).abs().max()))
        used.append({name: runner.state.side_path.live[name].adapter for name in names})
    print(f"largest difference {largest:.2e}; slots {used}")
    assert largest < 1e-5
    assert {step["b"] for step in used if "b" in step} == {0}
    assert {1, 2} == {slot for step in used for slot in step.values()} - {0}
    alone = Oracle(nets, config, 0)
    heard = Oracle(nets, config, 1)
    assert (alone.step(hidden[0]) - heard.step(hidden[0])).abs().max() > 1e-3


def test_given_patches_are_embedded_by_the_adapter_of_their_request(
    runner: LoRARunner,
    requests: dict[str, LoRARequest | None],
    nets: SpeechNets,
    tiny_tokenizer: TextTokenizer,
    voice_16k: np.ndarray,
) -> None:
    config = runner.config
    spoken = build_prompt(
        "good morning.",
        config=config,
        tokenizer=tiny_tokenizer,
        prompt=voice_16k,
        prompt_text="hello. ",
    )
    (span,) = spoken.spans
    for row, (name, adapter) in enumerate((("a", "adapter 1"), ("b", "base"), ("c", "adapter 3"))):
        runner.submit(name, spoken)
        runner.admit(name, row)
        runner.lora_state.add_request(name, row, requests[adapter])
    n = len(spoken.token_ids)
    embeds, _ = runner.step(a=n, b=n)
    cached = runner.cache.encoder_outputs[span.digest]
    patches = cached[:, config.lm.hidden_size :].view(-1, config.patch_size, config.feat_dim)
    given = [embeds[i * n + span.offset :][: span.n_patches] for i in range(2)]
    with nets.adapter_rows.using(torch.ones(len(patches), dtype=torch.long)):
        adapted = nets.embed_patches(patches)
    assert (given[0] - adapted).abs().max() < 1e-5
    assert torch.equal(given[1], cached[:, : config.lm.hidden_size])
    assert (adapted - given[1]).abs().max() > 1e-3
