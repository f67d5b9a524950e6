"""Registration with vLLM, and what vLLM then makes of a published checkpoint directory."""

from __future__ import annotations

import json
import os
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
from vllm import AsyncEngineArgs, ModelRegistry
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import ProcessorInputs, TimingContext
from vllm.plugins import load_general_plugins
from vllm.transformers_utils.config import get_config, get_config_parser
from vllm.utils.torch_utils import available_cpu_count
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from tests.checkpoints import write_checkpoint
from voxnative import plugin
from voxnative.engine.engine_config import CPU_KV_BLOCK, CPU_WORKER
from voxnative.engine.hf_config import VoxCPM2HFConfig
from voxnative.engine.processor import SpeechProcessor
from voxnative.engine.start import engine_args

MEMORY = {"kv_cache_memory_bytes": 64 << 20}


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    load_general_plugins()


def test_the_entry_point_is_ours() -> None:
    (found,) = [e for e in entry_points(group="vllm.general_plugins") if e.name == "voxnative"]
    assert found.load() is plugin.register


def test_registering_twice_changes_nothing() -> None:
    parser = type(get_config_parser("hf"))
    plugin.register()
    assert type(get_config_parser("hf")) is parser
    assert set(plugin.ARCHITECTURES.values()) <= set(ModelRegistry.get_supported_archs())


def test_a_published_config_is_understood(tiny_dir: Path) -> None:
    published = json.loads((tiny_dir / "config.json").read_text())
    assert "model_type" not in published
    assert "architectures" not in published
    config = get_config(tiny_dir, trust_remote_code=False)
    assert isinstance(config, VoxCPM2HFConfig)
    assert config.architectures == [plugin.ARCHITECTURE]
    assert config.vocab_size == published["lm_config"]["vocab_size"] + 3
    assert config.head_dim == published["lm_config"]["kv_channels"]


def test_the_older_family_has_a_name_of_its_own(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "voxcpm", architecture="voxcpm")
    config = get_config(directory, trust_remote_code=False)
    assert isinstance(config, VoxCPM2HFConfig)
    assert config.architectures == ["VoxCPMForSpeech"]


def test_other_models_keep_vllms_parser(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    )
    assert get_config(tmp_path, trust_remote_code=False).model_type == "llama"


def test_plain_engine_arguments_choose_our_worker(tiny_dir: Path) -> None:
    config = AsyncEngineArgs(str(tiny_dir), **MEMORY).create_engine_config()
    assert config.parallel_config.worker_cls == CPU_WORKER
    assert config.model_config.logits_processors == ["voxnative.engine.admission:SpeechAdmission"]
    assert not config.scheduler_config.async_scheduling
    mine = AsyncEngineArgs(str(tiny_dir), worker_cls="my.Worker", **MEMORY).create_engine_config()
    assert mine.parallel_config.worker_cls == "my.Worker"


def test_one_cpu_worker_lives_in_the_engines_process(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    alone = AsyncEngineArgs(str(tiny_dir), **MEMORY).create_engine_config()
    assert Executor.get_class(alone) is UniProcExecutor
    assert int(os.environ["OMP_NUM_THREADS"]) == max(1, available_cpu_count() - 1)
    asked = AsyncEngineArgs(str(tiny_dir), distributed_executor_backend="mp", **MEMORY)
    assert Executor.get_class(asked.create_engine_config()) is MultiprocExecutor


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative"),
        (
            {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
            "kv_transfer",
        ),
        ({"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}, "pipeline_parallel"),
    ],
)
def test_what_would_lose_audio_is_refused(setting: dict, name: str, tiny_dir: Path) -> None:
    with pytest.raises(ValueError, match=name):
        AsyncEngineArgs(str(tiny_dir), **MEMORY, **setting).create_engine_config()


@pytest.mark.parametrize("skip_tokenizer_init", [True, False])
def test_processor_with_and_without_a_tokenizer(
    skip_tokenizer_init: bool, tiny_dir: Path, voice_16k: np.ndarray
) -> None:
    args = AsyncEngineArgs(str(tiny_dir), skip_tokenizer_init=skip_tokenizer_init, **MEMORY)
    config = args.create_engine_config()
    processor = MULTIMODAL_REGISTRY.create_processor(config.model_config)
    assert isinstance(processor, SpeechProcessor)
    vox = config.model_config.hf_config.vox_config()
    inputs = ProcessorInputs(
        prompt=[103, vox.audio_patch_id, 104, 5, 6, 101],
        mm_data_items=processor.info.parse_mm_data({"audio": [voice_16k]}),
    )
    rendered = processor.apply(inputs, TimingContext(enabled=False))
    n_patches = -(-len(voice_16k) // vox.patch_samples_in)
    (place,) = rendered["mm_placeholders"]["audio"]
    assert (place.offset, place.length) == (1, n_patches)
    assert rendered["prompt_token_ids"].count(vox.audio_patch_id) == n_patches
    waveform = rendered["mm_kwargs"]["audio"][0]["waveform"].data
    assert len(waveform) == n_patches * vox.patch_samples_in
    dummy = processor.get_dummy_mm_inputs({"audio": 2})
    assert len(dummy["mm_placeholders"]["audio"]) == 2


def test_default_kv_cache_holds_a_full_batch(tiny_config, tiny_dir: Path) -> None:
    args = engine_args(
        tiny_dir,
        tiny_config,
        dtype=None,
        max_num_seqs=4,
        max_model_len=512,
        kv_cache_memory_bytes=None,
    )
    n_layers = tiny_config.lm.num_hidden_layers + tiny_config.residual_lm.num_hidden_layers
    per_token = 2 * n_layers * tiny_config.lm.num_key_value_heads * tiny_config.lm.head_dim * 4
    assert args.kv_cache_memory_bytes == (4 * 512 + CPU_KV_BLOCK) * per_token


def test_kv_blocks_are_small_enough_to_share_a_voice(tiny_dir: Path) -> None:
    cache = AsyncEngineArgs(str(tiny_dir), **MEMORY).create_engine_config().cache_config
    assert cache.block_size == CPU_KV_BLOCK
    given = AsyncEngineArgs(str(tiny_dir), block_size=128, **MEMORY).create_engine_config()
    assert given.cache_config.block_size == 128
