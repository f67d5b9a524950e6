"""The ``voxnative_engine`` section of vLLM's additional configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm import AsyncEngineArgs

from voxnative.engine.options import SpeechOptions


def test_defaults_and_values() -> None:
    assert SpeechOptions.from_additional_config({}) == SpeechOptions()
    section = {"voxnative_engine": {"compile_solver": True}, "somebody_else": 1}
    assert SpeechOptions.from_additional_config(section).compile_solver
    section = {"voxnative_engine": {"graph_timesteps": [10, 6, 10], "vae_precision": "tf32"}}
    options = SpeechOptions.from_additional_config(section)
    assert (options.graph_timesteps, options.vae_precision) == ((10, 6), "tf32")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"compile_sovler": True}, "unknown key 'compile_sovler'; valid: compile_solver, fp8_dit"),
        ({"compile_solver": "yes"}, "'yes' is not valid; valid: true, false"),
        ({"compile_solver": None}, "None is not valid; valid: true, false"),
        ({"vae_precision": "bf16"}, "'bf16' is not valid; valid: fp32, tf32, fp16"),
        ({"graph_timesteps": [1]}, "valid: a list of whole numbers from 2 to 100"),
        ({"graph_timesteps": 10}, "valid: a list of whole numbers from 2 to 100"),
    ],
)
def test_a_wrong_section_is_refused_before_the_engine_starts(
    section: dict[str, Any], message: str, tiny_dir: Path
) -> None:
    args = AsyncEngineArgs(
        str(tiny_dir),
        kv_cache_memory_bytes=1 << 26,
        additional_config={"voxnative_engine": section},
    )
    with pytest.raises(ValueError, match=message):
        args.create_engine_config()


def test_compiled_networks_take_no_adapters(tiny_dir: Path) -> None:
    args = AsyncEngineArgs(
        str(tiny_dir),
        kv_cache_memory_bytes=1 << 26,
        additional_config={"voxnative_engine": {"compile_solver": True}},
        enable_lora=True,
    )
    with pytest.raises(ValueError, match=r"'compile_solver'.: True is not valid with enable_lora"):
        args.create_engine_config()
