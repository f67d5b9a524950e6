"""Every hook of vLLM that the engine overrides or calls, by name and signature.

An upgrade of vLLM that moves one of them fails here, in seconds, and says which.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import vllm
from vllm.inputs.engine import mm_input
from vllm.lora.lora_weights import LoRALayerWeights
from vllm.lora.model_manager import LRUCacheLoRAModelManager
from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.lora.punica_wrapper.punica_gpu import PunicaWrapperGPU
from vllm.lora.request import LoRARequest
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models.config import VerifyAndUpdateConfig
from vllm.model_executor.models.interfaces import SupportsMultiModal
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    PlaceholderRange,
)
from vllm.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.transformers_utils.config import HFConfigParser, register_config_parser
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import (
    AsyncMPClient,
    BackgroundResources,
    DPLBAsyncMPClient,
    _process_utility_output,
)
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.engine.utils import CoreEngineProcManager
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.utils import shutdown
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu import model_runner as v2
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.lora_utils import LoraState
from vllm.v1.worker.gpu.mm.encoder_cache import EncoderCache
from vllm.v1.worker.gpu.mm.encoder_runner import EncoderRunner
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.sample.logits_processor.interface import (
    LogitsProcessor as LogitsProcessorV2,
)
from vllm.v1.worker.gpu_model_runner import ExecuteModelState, GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker
from vllm.v1.worker.lora_model_runner_mixin import LoRAModelRunnerMixin

from voxnative.engine.model import VoxCPM2ForSpeech

HOOKS: list[tuple[Callable[..., Any], list[str]]] = [
    (VerifyAndUpdateConfig.verify_and_update_config, ["vllm_config"]),
    (register_config_parser, ["config_format"]),
    (
        HFConfigParser.parse,
        ["self", "model", "trust_remote_code", "revision", "code_revision", "kwargs"],
    ),
    (default_weight_loader, ["param", "loaded_weight"]),
    (
        mm_input,
        [
            "prompt_token_ids",
            "mm_kwargs",
            "mm_hashes",
            "mm_placeholders",
            "prompt",
            "cache_salt",
        ],
    ),
    (MultiModalFieldElem, ["data", "field"]),
    (MultiModalBatchedField, ["keep_on_cpu"]),
    (SamplingParams.clone, ["self"]),
    (PlaceholderRange, ["offset", "length", "is_embed"]),
    (IncrementalDetokenizer.update, ["self", "new_token_ids", "stop_terminated"]),
    (
        OutputProcessor._update_stats_from_output,
        [
            "self",
            "req_state",
            "engine_core_output",
            "engine_core_timestamp",
            "iteration_stats",
        ],
    ),
    (SupportsMultiModal.embed_multimodal, ["self", "kwargs"]),
    (BaseDummyInputsBuilder.get_dummy_mm_data, ["self", "seq_len", "mm_counts", "mm_options"]),
    (BaseMultiModalProcessor.get_dummy_inputs, ["self", "seq_len", "mm_counts", "mm_options"]),
    (BaseMultiModalProcessor._call_hf_processor, ["self", "hf_data", "hf_kwargs"]),
    (
        BaseMultiModalProcessor._get_mm_fields_config,
        ["self", "hf_inputs", "hf_processor_mm_kwargs"],
    ),
    (
        BaseMultiModalProcessor._get_prompt_updates,
        ["self", "mm_items", "hf_processor_mm_kwargs", "out_mm_kwargs"],
    ),
    (CPUWorker.init_device, ["self"]),
    (CPUModelRunner.__init__, ["self", "vllm_config", "device"]),
    (CPUModelRunner.load_model, ["self", "load_dummy_weights"]),
    (GPUModelRunner.execute_model, ["self", "scheduler_output", "intermediate_tensors"]),
    (
        GPUModelRunner._model_forward,
        [
            "self",
            "input_ids",
            "positions",
            "intermediate_tensors",
            "inputs_embeds",
            "model_kwargs",
        ],
    ),
    (GPUModelRunner.sample_tokens, ["self", "grammar_output"]),
    (Worker.init_device, ["self"]),
    (Worker._make_model_runner, ["self"]),
    (Worker.determine_available_memory, ["self"]),
    (v2.GPUModelRunner.__init__, ["self", "vllm_config", "device"]),
    (v2.GPUModelRunner.finish_requests, ["self", "scheduler_output"]),
    (v2.GPUModelRunner.sample_tokens, ["self", "grammar_output"]),
    (DefaultModelState.__init__, ["self", "vllm_config", "model", "encoder_cache", "device"]),
    (DefaultModelState.add_request, ["self", "req_index", "new_req_data"]),
    (
        DefaultModelState.prepare_inputs_embeds,
        ["self", "scheduled_encoder_inputs", "input_batch", "req_states"],
    ),
    (
        EncoderRunner.get_inputs_embeds,
        ["self", "input_ids", "mm_embeds", "is_mm_embed"],
    ),
    (LogitsProcessorV2.validate_params, ["sampling_params"]),
    (LogitsProcessorV2.add_request, ["self", "req_idx", "sampling_params"]),
    (LogitsProcessorV2.apply, ["self", "logits", "ctx"]),
    (AsyncLLM._run_output_handler, ["self"]),
    (AsyncMPClient.call_utility_all_async, ["self", "method", "args"]),
    (AsyncMPClient._call_utility_async, ["self", "method", "args", "engine"]),
    (AsyncMPClient._ensure_output_queue_task, ["self"]),
    (AsyncMPClient._send_input, ["self", "request_type", "request", "engine"]),
    (DPLBAsyncMPClient.add_request_async, ["self", "request"]),
    (DPLBAsyncMPClient.get_core_engine_for_request, ["self", "request"]),
    (DPLBAsyncMPClient.process_engine_outputs, ["self", "outputs"]),
    (DPLBAsyncMPClient.shutdown, ["self", "timeout"]),
    (_process_utility_output, ["output", "utility_results"]),
    (shutdown, ["procs", "timeout"]),
    (OutputProcessor.abort_requests, ["self", "request_ids", "internal"]),
    (
        AsyncLLM.reset_prefix_cache,
        ["self", "reset_running_requests", "reset_connector"],
    ),
    (
        OutputProcessor.add_request,
        ["self", "request", "prompt", "parent_req", "request_index", "queue"],
    ),
    (
        OutputProcessor.__init__,
        [
            "self",
            "tokenizer",
            "log_stats",
            "stream_interval",
            "tracing_enabled",
            "admission_stats",
        ],
    ),
    (
        OutputProcessor.process_outputs,
        [
            "self",
            "engine_core_outputs",
            "engine_core_timestamp",
            "iteration_stats",
            "weight_version",
        ],
    ),
    (RequestOutputCollector.put, ["self", "output"]),
    (RequestOutput.add, ["self", "next_output", "aggregate"]),
    (LogitsProcessor.validate_params, ["sampling_params"]),
    (LogitsProcessor.__init__, ["self", "vllm_config", "device", "is_pin_memory"]),
    (LoRAModelRunnerMixin.load_lora_model, ["self", "model", "vllm_config", "device"]),
    (
        LRUCacheWorkerLoRAManager.__init__,
        ["self", "vllm_config", "device", "embedding_modules", "lora_model_cls"],
    ),
    (LRUCacheWorkerLoRAManager._load_adapter, ["self", "lora_request"]),
    (LRUCacheWorkerLoRAManager.create_lora_manager, ["self", "model", "vllm_config"]),
    (
        LRUCacheLoRAModelManager._init_punica_wrapper,
        ["self", "max_num_batched_tokens", "vllm_config"],
    ),
    (LRUCacheLoRAModelManager._create_merged_loras_inplace, ["self", "lora_model"]),
    (LRUCacheLoRAModelManager._match_target_modules, ["self", "module_name"]),
    (LRUCacheLoRAModelManager._set_adapter_mapping, ["self", "mapping"]),
    (LRUCacheLoRAModelManager._deactivate_adapter, ["self", "lora_id"]),
    (LRUCacheLoRAModelManager.activate_adapter, ["self", "lora_id"]),
    (
        LoRALayerWeights.__init__,
        ["self", "module_name", "rank", "lora_alpha", "lora_a", "lora_b", "scaling"],
    ),
    (
        PunicaWrapperCPU.update_metadata,
        ["self", "mapping", "lora_index_to_id", "max_loras", "vocab_size", "kwargs"],
    ),
    (
        PunicaWrapperCPU.add_lora_linear,
        [
            "self",
            "y",
            "x",
            "lora_a_stacked",
            "lora_b_stacked",
            "scale",
            "output_slices",
            "buffer",
            "kwargs",
        ],
    ),
    (
        PunicaWrapperGPU.update_metadata,
        ["self", "mapping", "lora_index_to_id", "max_loras", "vocab_size", "kwargs"],
    ),
    (LoRAKernelMeta.prepare_tensors, ["self", "token_lora_mapping"]),
    (LoraState.add_request, ["self", "req_id", "req_index", "lora_request"]),
    (AsyncLLM.add_lora, ["self", "lora_request"]),
    (AsyncLLM.remove_lora, ["self", "lora_id"]),
]


@pytest.mark.parametrize(
    ("hook", "expected"), HOOKS, ids=lambda hook: getattr(hook, "__qualname__", "")
)
def test_signature(hook: Callable[..., Any], expected: list[str]) -> None:
    assert list(inspect.signature(hook).parameters) == expected


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        (ExecuteModelState, {"sample_hidden_states"}),
        (v2.ExecuteModelState, {"input_batch", "hidden_states"}),
        (
            InputBatch,
            {
                "req_ids",
                "num_reqs",
                "num_tokens",
                "num_tokens_after_padding",
                "idx_mapping",
                "idx_mapping_np",
                "num_scheduled_tokens",
                "num_computed_tokens_np",
                "prefill_len_np",
                "query_start_loc_np",
                "has_prefill",
            },
        ),
        (
            NewRequestData,
            {"req_id", "sampling_params", "prefill_token_ids", "prompt_token_ids"},
        ),
        (ModelRunnerOutput, {"req_ids", "sampled_token_ids", "pooler_output"}),
        (LoRARequest, {"lora_name", "lora_int_id", "lora_path"}),
        (
            LoRAKernelMeta,
            {
                "token_lora_mapping",
                "token_indices_sorted_by_lora_ids",
                "active_lora_ids",
                "num_tokens_per_lora",
                "lora_token_start_loc",
                "no_lora_flag_cpu",
                "num_active_loras_cpu",
                "captured_lora_counts",
            },
        ),
        (
            BackgroundResources,
            {
                "engine_dead",
                "engine_manager",
                "output_queue_task",
                "output_socket",
                "stats_update_task",
            },
        ),
        (EngineCoreOutputs, {"engine_index", "outputs", "scheduler_stats", "utility_output"}),
        (EngineCoreOutput, {"request_id", "new_token_ids", "pooling_output", "finish_reason"}),
    ],
)
def test_fields(record: Any, fields: set[str]) -> None:
    present = getattr(record, "_fields", None) or getattr(record, "__struct_fields__", None)
    present = present or record.__dataclass_fields__
    assert fields <= set(present)


def test_the_model_brings_the_v2_state() -> None:
    state = VoxCPM2ForSpeech.get_model_state_cls()
    assert issubclass(state, DefaultModelState)
    assert EncoderCache().mm_features == EncoderCache().encoder_outputs == {}
    assert {"finished_req_ids", "preempted_req_ids"} <= set(SchedulerOutput.__dataclass_fields__)


def test_the_v2_runner_handles_adapters_in_this_order() -> None:
    """By names as they are first used: layers are wrapped before the model's state folds them,
    and adapters have their slots before embeddings are made.
    """
    assert v2.GPUModelRunner.load_lora_model is LoRAModelRunnerMixin.load_lora_model
    load = v2.GPUModelRunner.load_model.__code__.co_names
    assert load.index("load_lora_model") < load.index("init_model_state")
    execute = inspect.unwrap(v2.GPUModelRunner.execute_model).__code__.co_names
    assert execute.index("_set_active_loras") < execute.index("prepare_inputs_embeds")
    assert LoraState(1).lora_requests == {}
    wrapper = PunicaWrapperGPU.__init__.__code__.co_names
    assert {"token_mapping_meta", "prompt_mapping_meta"} <= set(wrapper)


def test_version_is_the_pinned_one() -> None:
    assert vllm.__version__.startswith("0.32.")


def test_vllm_ends_replicas_through_finalizers() -> None:
    """Which our client of them detaches, so that one death is not everybody's."""
    monitor = CoreEngineProcManager.monitor_engine_liveness.__code__.co_names
    assert "shutdown" in monitor
    assert {"_finalizer", "detach"} <= set(CoreEngineProcManager.shutdown.__code__.co_names)
    assert {"_finalizer", "detach"} <= set(DPLBAsyncMPClient.shutdown.__code__.co_names)
