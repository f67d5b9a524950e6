"""The state of Model Runner V2 with vLLM's own classes, on a CPU: inputs, preemption, the step.

The runner itself needs a GPU; here its part is played by batches built by hand.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vllm import AsyncEngineArgs
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.config.compilation import CompilationMode, CUDAGraphMode
from vllm.distributed import (
    cleanup_dist_env_and_memory,
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.multimodal.inputs import MultiModalFeatureSpec
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.worker.gpu import cudagraph_utils
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
from vllm.v1.worker.gpu.mm.encoder_cache import EncoderCache

from voxnative.engine.engine_config import (
    KEY_SPLITS,
    MAX_ENCODED_PATCHES,
    MAX_GRAPH_TOKENS,
    use_full_graphs,
)
from voxnative.engine.engine_input import engine_input, sampling_params
from voxnative.engine.model import VoxCPM2ForSpeech
from voxnative.engine.model_state import SpeechModelState, with_captured_query_len
from voxnative.params import SpeechParams
from voxnative.prompt import SpeechPrompt, build_prompt
from voxnative.tokenizer import TextTokenizer

NEVER: Any = None  # fields that neither the state nor what it inherits reads


@pytest.fixture(scope="module")
def vllm_config(tiny_dir: Path) -> VllmConfig:
    args = AsyncEngineArgs(
        str(tiny_dir), dtype="float32", max_num_seqs=4, kv_cache_memory_bytes=1 << 26
    )
    return args.create_engine_config()


@pytest.fixture(scope="module")
def model(
    vllm_config: VllmConfig, tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VoxCPM2ForSpeech]:
    store = tmp_path_factory.mktemp("store") / "file"
    with set_current_vllm_config(vllm_config):
        init_distributed_environment(1, 0, f"file://{store}", 0, backend="gloo")
        initialize_model_parallel()
        model = VoxCPM2ForSpeech(vllm_config=vllm_config)
        model.load_weights([])
        yield model.requires_grad_(False)
    cleanup_dist_env_and_memory()


class Runner:
    """What the runner does around the state: request rows, encoder cache, batches."""

    def __init__(self, state: SpeechModelState, model: VoxCPM2ForSpeech) -> None:
        self.cache, self.state, self.model = state.encoder_cache, state, model
        self.config = model.config
        self.computed: dict[str, int] = {}
        self.prefill: dict[str, list[int]] = {}
        self.index: dict[str, int] = {}
        self.outputs: dict[str, int] = {}
        self.prompts: dict[str, tuple[SpeechPrompt, list[MultiModalFeatureSpec]]] = {}

    def submit(self, request_id: str, prompt: SpeechPrompt) -> None:
        rendered = engine_input(prompt, request_id)
        features = [
            MultiModalFeatureSpec(
                data=rendered["mm_kwargs"][modality][i],
                modality=modality,
                identifier=rendered["mm_hashes"][modality][i],
                mm_position=position,
            )
            for modality, positions in rendered["mm_placeholders"].items()
            for i, position in enumerate(positions)
        ]
        features.sort(key=lambda feature: feature.mm_position.offset)
        self.prompts[request_id] = prompt, features
        self.outputs[request_id] = 0

    def admit(self, request_id: str, index: int, computed: int = 0) -> None:
        prompt, features = self.prompts[request_id]
        ids = list(prompt.token_ids)
        ids += [self.config.continue_id] * self.outputs[request_id]
        params = sampling_params(SpeechParams(seed=7, timesteps=3), 64, self.config)
        new = NewRequestData(
            request_id, list(prompt.token_ids), features, params, None, ([],), computed, None,
            prefill_token_ids=ids,
        )  # fmt: skip
        self.cache.add_request(request_id, features)
        self.state.add_request(index, new)
        self.computed[request_id] = computed
        self.prefill[request_id], self.index[request_id] = ids, index

    def batch(self, **scheduled: int) -> InputBatch:
        names = sorted(scheduled, key=scheduled.__getitem__)
        n = len(names)
        counts = np.array([scheduled[name] for name in names], np.int32)
        computed = np.array([self.computed[name] for name in names], np.int32)
        prefill = np.array([len(self.prefill[name]) for name in names], np.int32)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        index = np.array([self.index[name] for name in names])
        ids = [
            (self.prefill[name] + [self.config.continue_id])[
                min(self.computed[name], len(self.prefill[name])) :
            ][: scheduled[name]]
            for name in names
        ]
        flat = torch.tensor([i for row in ids for i in row], dtype=torch.int32)
        is_prefilling = computed < prefill
        fields: dict[str, Any] = dict.fromkeys(InputBatch.__dataclass_fields__, NEVER)
        fields |= {
            "req_ids": names, "num_reqs": n, "num_reqs_after_padding": n,
            "idx_mapping": torch.from_numpy(index), "idx_mapping_np": index,
            "num_scheduled_tokens": counts, "num_tokens": len(flat),
            "num_tokens_after_padding": len(flat) + 2, "query_start_loc_np": starts,
            "num_computed_tokens_np": computed, "prefill_len_np": prefill,
            "num_computed_prefill_tokens_np": np.minimum(computed, prefill),
            "is_prefilling_np": is_prefilling, "has_prefill": bool(is_prefilling.any()),
            "input_ids": torch.cat([flat, flat.new_zeros(2)]),
        }  # fmt: skip
        return InputBatch(**fields)

    def set_adapters(self, batch: InputBatch) -> list[int] | None:
        """What the runner does first where LoRA is on; slots of the requests' adapters."""
        return None

    def step(self, **scheduled: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Inputs of the language models, and the samples of those that sampled."""
        batch = self.batch(**scheduled)
        adapters = self.set_adapters(batch)
        encoder_inputs = {
            name: [i for i, f in enumerate(self.prompts[name][1]) if f.modality == "audio"]
            for name in scheduled
            if self.computed[name] == 0 and self.prompts[name][0].spans
        }
        embeds = self.state.prepare_inputs_embeds(encoder_inputs, batch, NEVER).clone()
        hidden = torch.randn(batch.num_tokens, 2 * self.config.lm.hidden_size)
        made: dict[str, torch.Tensor] = {}
        for part in self.state.speak(batch, hidden, adapters):
            waves = self.state.side_path.deliver(part)
            made |= {batch.req_ids[row]: wave for row, wave in zip(part.rows, waves, strict=True)}
        for name, n_tokens in scheduled.items():
            self.computed[name] += n_tokens
        for name in made:
            self.outputs[name] += 1
        return embeds[: batch.num_tokens], made


@pytest.fixture(scope="module")
def state(vllm_config: VllmConfig, model: VoxCPM2ForSpeech) -> SpeechModelState:
    return SpeechModelState(vllm_config, model, EncoderCache(), torch.device("cpu"))


@pytest.fixture
def runner(state: SpeechModelState, model: VoxCPM2ForSpeech) -> Iterator[Runner]:
    torch.manual_seed(0)
    yield Runner(state, model)
    for request_id in list(state.side_path.live):
        state.end_request(request_id)
    state.encoder_cache.reset_encoder_cache()


@pytest.fixture
def prompt(model: VoxCPM2ForSpeech, tiny_tokenizer: TextTokenizer) -> SpeechPrompt:
    return build_prompt("good morning.", config=model.config, tokenizer=tiny_tokenizer)


def test_text_then_generated_embeddings(runner: Runner, prompt: SpeechPrompt) -> None:
    runner.submit("a", prompt)
    runner.admit("a", 2)
    n = len(prompt.token_ids)
    embeds, made = runner.step(a=n)
    text = runner.model.embed_input_ids(torch.tensor(prompt.token_ids))
    assert torch.equal(embeds, text)
    assert made["a"].shape == (runner.config.patch_samples_out,)
    for _ in range(3):
        expected = runner.state.side_path.live["a"].history[-1]
        embeds, made = runner.step(a=1)
        assert torch.equal(embeds[0], expected)
        assert list(made) == ["a"]


def test_a_chunk_of_a_prefill_beside_a_decode(runner: Runner, prompt: SpeechPrompt) -> None:
    for name in "ab":
        runner.submit(name, prompt)
    runner.admit("a", 0)
    runner.step(a=len(prompt.token_ids))
    runner.admit("b", 3)
    state = runner.state.side_path.state
    untouched = state.previous_patch[3].clone(), state.tails[3].clone()
    decoded = runner.state.side_path.live["a"].history[-1]
    embeds, made = runner.step(a=1, b=4)
    assert torch.equal(embeds[0], decoded)
    text = runner.model.embed_input_ids(torch.tensor(prompt.token_ids))
    assert torch.equal(embeds[1:], text[:4])
    assert list(made) == ["a"]
    assert torch.equal(state.previous_patch[3], untouched[0])
    assert torch.equal(state.tails[3], untouched[1])
    embeds, made = runner.step(a=1, b=len(text) - 4)
    assert sorted(made) == ["a", "b"]
    assert torch.equal(embeds[1:], text[4:])


@pytest.mark.parametrize("cached", [0, "two generated positions"])
def test_a_preempted_request_replays_its_embeddings(
    cached: int | str, runner: Runner, prompt: SpeechPrompt
) -> None:
    """It comes back in another row, its prompt and history prefilled in chunks."""
    for name in "ab":
        runner.submit(name, prompt)
    runner.admit("a", 0)
    n = len(prompt.token_ids)
    runner.step(a=n)
    for _ in range(5):
        runner.step(a=1)
    side = runner.state.side_path
    history = torch.stack(side.live["a"].history)
    assert len(history) == 6
    row = [tensor[0].clone() for tensor in side.state._tensors()]
    runner.state.park_request("a")
    runner.state.remove_request("a")  # as the stock runner does behind it
    assert side.slot_of == {"a": None}
    runner.admit("b", 0)
    runner.step(b=n)

    runner.admit("a", 1, n + 2 if cached else 0)
    if not cached:
        embeds, made = runner.step(a=n + 2, b=1)
        assert torch.equal(embeds[1 + n :], history[:2])
        assert list(made) == ["b"]
    for tensor, kept in zip(side.state._tensors(), row, strict=True):
        assert torch.equal(tensor[1], kept)
    embeds, made = runner.step(a=4, b=1)
    assert torch.equal(embeds[1:], history[2:])
    assert sorted(made) == ["a", "b"]
    assert runner.state.replays == runner.state.n_prompt_of == {}
    assert side.live["a"].n_steps == 7
    assert len(side.live["a"].history) == 7


def test_a_continuation_starts_behind_its_prompt(
    runner: Runner, tiny_tokenizer: TextTokenizer, voice_16k: np.ndarray
) -> None:
    spoken = build_prompt(
        "good morning.",
        config=runner.config,
        tokenizer=tiny_tokenizer,
        prompt=voice_16k,
        prompt_text="hello. ",
    )
    runner.submit("a", spoken)
    runner.admit("a", 1)
    (span,) = spoken.spans
    embeds, made = runner.step(a=len(spoken.token_ids))
    rows = runner.cache.encoder_outputs[span.digest]
    hidden = runner.config.lm.hidden_size
    assert torch.equal(embeds[span.offset : span.offset + span.n_patches], rows[:, :hidden])
    assert list(made) == ["a"]
    assert len(rows) >= runner.config.family.n_context_patches
    # The last prompt patch was the solver's condition: without priming the result differs.
    plain = build_prompt("good morning.", config=runner.config, tokenizer=tiny_tokenizer)
    assert plain.token_ids != spoken.token_ids
    torch.manual_seed(1)
    runner.submit("b", plain)
    runner.admit("b", 2)
    torch.manual_seed(1)
    _, alone = runner.step(b=len(plain.token_ids))
    assert (alone["b"] - made["a"]).abs().max() > 1e-4


def test_vllms_warm_up_is_no_speech(runner: Runner, prompt: SpeechPrompt) -> None:
    from vllm import SamplingParams

    runner.submit("_warmup_0_", prompt)
    new = NewRequestData(
        "_warmup_0_", [0, 1], [], SamplingParams.for_sampler_warmup(), None, ([],), 0, None,
        prefill_token_ids=[0, 1],
    )  # fmt: skip
    runner.cache.add_request("_warmup_0_", [])
    runner.state.add_request(0, new)
    runner.prompts["_warmup_0_"] = prompt, []
    runner.computed["_warmup_0_"], runner.index["_warmup_0_"] = 0, 0
    runner.prefill["_warmup_0_"] = [0, 1]
    assert runner.step(_warmup_0_=2)[1] == {}
    assert runner.step(_warmup_0_=1)[1] == {}
    assert len(runner.state.side_path.live) == 0


def test_ends_and_aborts_leave_nothing(runner: Runner, prompt: SpeechPrompt) -> None:
    for name in "ab":
        runner.submit(name, prompt)
    runner.admit("a", 0)
    runner.step(a=len(prompt.token_ids))
    runner.state.end_request("a")
    runner.state.end_request("never scheduled")
    runner.admit("b", 1)
    runner.step(b=3)
    runner.state.park_request("b")
    runner.state.end_request("b")
    assert len(runner.state.side_path.live) == 0


def test_graph_settings_that_were_left_open_are_filled(vllm_config: VllmConfig) -> None:
    """On CUDA: full graphs for decode and mixed steps; a user's own settings stand."""
    config = copy.deepcopy(vllm_config)
    compilation = config.compilation_config
    compilation.mode = compilation.cudagraph_mode = None
    compilation.cudagraph_capture_sizes = compilation.max_cudagraph_capture_size = None
    scheduler, attention = config.scheduler_config, config.attention_config
    scheduler.max_num_seqs = 64
    scheduler.max_num_batched_tokens = scheduler.max_num_encoder_input_tokens = 3000
    use_full_graphs(config)
    assert compilation.mode == CompilationMode.NONE
    assert compilation.cudagraph_mode == CUDAGraphMode.FULL
    assert compilation.cudagraph_capture_sizes[-1] == 3000
    assert scheduler.max_num_encoder_input_tokens == MAX_ENCODED_PATCHES
    assert attention.flash_attn_max_num_splits_for_cuda_graph == KEY_SPLITS
    compilation.cudagraph_capture_sizes = compilation.max_cudagraph_capture_size = None
    scheduler.max_num_batched_tokens = 2 * MAX_GRAPH_TOKENS
    use_full_graphs(config)
    assert compilation.cudagraph_capture_sizes[-1] == MAX_GRAPH_TOKENS
    compilation.cudagraph_capture_sizes = compilation.max_cudagraph_capture_size = None
    scheduler.max_num_seqs = 1
    use_full_graphs(config)
    assert compilation.cudagraph_capture_sizes[-1] == config.model_config.max_model_len
    compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    compilation.cudagraph_capture_sizes = [1, 2]
    attention.flash_attn_max_num_splits_for_cuda_graph = 4
    use_full_graphs(config)
    assert compilation.cudagraph_mode == CUDAGraphMode.FULL_DECODE_ONLY
    assert compilation.cudagraph_capture_sizes == [1, 2]
    assert attention.flash_attn_max_num_splits_for_cuda_graph == 4


def test_replays_of_mixed_graphs_keep_the_query_length_of_their_capture() -> None:
    """vLLM captures them for one query of all tokens, also where each request decodes one."""
    cpu = torch.device("cpu")
    buffers = InputBuffers(max_num_reqs=8, max_num_tokens=32, device=cpu)
    decode = InputBatch.make_dummy(4, 4, buffers)
    assert int(decode.num_scheduled_tokens.max()) == 1
    assert decode.max_query_len is None
    padded = dataclasses.replace(decode, num_tokens_after_padding=8)
    assert with_captured_query_len(padded).max_query_len == 8
    capture = inspect.getsource(cudagraph_utils.prepare_inputs_to_capture)
    assert "max_query_len = num_tokens\n" in capture
