"""Two processes share the language models: weights, layers, memory, and what cannot be shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from vllm import AsyncEngineArgs
from vllm.plugins import load_general_plugins
from vllm.utils.cpu_resource_utils import LogicalCPUInfo

from tests.checkpoints import write_checkpoint
from tests.tensor_rank import N_RANKS, N_TOKENS, inputs, run_ranks
from voxnative.config import VoxConfig
from voxnative.engine.cpu_binding import BINDING, binding
from voxnative.engine.engine_config import CPU_KV_BLOCK
from voxnative.engine.start import engine_args
from voxnative.info import describe
from voxnative.kv_memory import kv_bytes_per_position
from voxnative.serving.plugin import batch_places
from voxnative.tensor_split import check_split, possible_splits

EXACT = {"rtol": 0.0, "atol": 1e-5}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four attention heads and a single KV head, which both ranks have to hold."""
    folder = tmp_path_factory.mktemp("split")
    return write_checkpoint(folder, lm_config={"num_key_value_heads": 1})


@pytest.fixture(scope="module")
def ranks(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two processes computed."""
    return run_ranks(checkpoint, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def whole(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model.safetensors")


def gated_mlp(weights: dict[str, torch.Tensor], prefix: str, x: torch.Tensor) -> torch.Tensor:
    gate, up, down = (
        weights[f"{prefix}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")
    )
    return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


class TestTwoRanks:
    def test_every_parameter_is_loaded(self, ranks: list[dict[str, Any]]) -> None:
        for rank in ranks:
            assert rank["loaded"] == rank["parameters"] > 50

    def test_heads_are_divided_and_a_single_kv_head_is_repeated(
        self, ranks: list[dict[str, Any]], whole: dict[str, torch.Tensor], checkpoint: Path
    ) -> None:
        lm = VoxConfig.from_dir(checkpoint).lm
        x = inputs(lm.hidden_size)
        q, k, v = (x @ whole[f"base_lm.layers.1.self_attn.{name}_proj.weight"].T for name in "qkv")
        n_columns = lm.num_attention_heads * lm.head_dim // N_RANKS
        for index, rank in enumerate(ranks):
            assert rank["heads"] == (lm.num_attention_heads // N_RANKS, 1)
            mine = q[:, index * n_columns : (index + 1) * n_columns]
            torch.testing.assert_close(rank["qkv"], torch.cat([mine, k, v], dim=1), **EXACT)

    def test_sums_over_ranks_are_the_whole_layers(
        self, ranks: list[dict[str, Any]], whole: dict[str, torch.Tensor], checkpoint: Path
    ) -> None:
        lm = VoxConfig.from_dir(checkpoint).lm
        x = inputs(lm.hidden_size)
        o = whole["base_lm.layers.1.self_attn.o_proj.weight"]  # [H, heads * head_dim]
        attended = x.repeat(1, 2)[:, : o.shape[1] // N_RANKS]
        expected = {
            "embeds": whole["base_lm.embed_tokens.weight"][100 : 100 + N_TOKENS],
            "o": torch.cat([attended, 2 * attended], dim=1) @ o.T,
            "mlp": gated_mlp(whole, "base_lm.layers.1", x),
            "residual_mlp": gated_mlp(whole, "residual_lm.layers.0", x),
        }
        for name, value in expected.items():
            for rank in ranks:
                torch.testing.assert_close(rank[name], value, **EXACT, msg=name)
            # The side path runs on every rank: what it starts from must be the same bits.
            assert torch.equal(ranks[0][name], ranks[1][name]), name


class TestSizes:
    def test_what_can_be_split(self, checkpoint: Path, tiny_config: VoxConfig) -> None:
        config = VoxConfig.from_dir(checkpoint)
        assert possible_splits(config) == [1, 2, 4]
        for n_ranks in (1, 2, 4):
            check_split(config, n_ranks)
        assert 1 in possible_splits(tiny_config)

    @pytest.mark.parametrize(
        ("lm", "n_ranks", "valid"),
        [
            ({}, 3, "1, 2, 4"),
            ({"intermediate_size": 162}, 4, "1, 2"),
            ({"num_attention_heads": 12, "num_key_value_heads": 4}, 3, "1, 2, 4"),
        ],
        ids=["heads", "feed-forward", "KV heads"],
    )
    def test_uneven_splits_are_refused(
        self, checkpoint: Path, lm: dict[str, int], n_ranks: int, valid: str
    ) -> None:
        raw = json.loads((checkpoint / "config.json").read_text())
        raw["lm_config"] |= lm
        with pytest.raises(ValueError, match=f"={n_ranks} is not valid.*valid: {valid}$"):
            check_split(VoxConfig.from_dict(raw), n_ranks)

    def test_the_engine_refuses_them_too(self, checkpoint: Path) -> None:
        load_general_plugins()
        with pytest.raises(ValueError, match=r"tensor_parallel_size=3 .* valid: 1, 2, 4"):
            AsyncEngineArgs(
                str(checkpoint), tensor_parallel_size=3, kv_cache_memory_bytes=1 << 20
            ).create_engine_config()

    def test_kv_memory_is_of_each_rank(self, tiny_config: VoxConfig, tiny_dir: Path) -> None:
        whole = kv_bytes_per_position(tiny_config, "float32")
        n_heads = tiny_config.lm.num_key_value_heads
        assert kv_bytes_per_position(tiny_config, "float32", n_heads) == whole // n_heads
        assert kv_bytes_per_position(tiny_config, "float32", 4 * n_heads) == whole // n_heads
        sizes = {"dtype": None, "max_num_seqs": 4, "max_model_len": 512}
        args = engine_args(
            tiny_dir, tiny_config, **sizes, kv_cache_memory_bytes=None, tensor_parallel_size=2
        )
        per_rank = kv_bytes_per_position(tiny_config, "float32", 2)
        assert args.kv_cache_memory_bytes == (4 * 512 + CPU_KV_BLOCK) * per_rank
        assert args.tensor_parallel_size == 2

    def test_info_names_each_ranks_memory(self, checkpoint: Path) -> None:
        lines = describe(checkpoint).splitlines()
        rows = [line.split(maxsplit=4) for line in lines if "each of" in line]
        assert [(row[2], row[4]) for row in rows] == [
            ("2", "1.3 kB a position"),
            ("4", "1.3 kB a position"),
        ]


class TestCores:
    def test_each_worker_has_cores_of_its_own(self) -> None:
        two = [LogicalCPUInfo(i, i, 0) for i in range(2)]
        assert binding(two, 2) == "0|1"
        assert binding(two, 3) == "nobind"
        eight = [LogicalCPUInfo(i, i, i // 4) for i in range(8)]
        assert binding(eight, 2) == "0,1,2|3,4,5"
        assert binding(eight, 3) == "0,1|2,3|4,5"

    def test_hyperthreads_of_a_core_stay_together_or_idle(self) -> None:
        threads = [LogicalCPUInfo(i, i % 4, 0) for i in range(8)]
        assert binding(threads, 2) == "4|5"
        assert binding(threads, 8) == "0|4|1|5|2|6|3|7"

    @pytest.mark.parametrize("given", [None, "nobind"])
    def test_the_engine_binds_where_the_user_did_not(
        self, given: str | None, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import os

        load_general_plugins()
        monkeypatch.setenv(BINDING, "unset")  # so that the test's end takes it back
        monkeypatch.delenv(BINDING)
        if given:
            monkeypatch.setenv(BINDING, given)
        arguments = {"kv_cache_memory_bytes": 1 << 20, "skip_tokenizer_init": True}
        AsyncEngineArgs(str(checkpoint), **arguments).create_engine_config()
        assert os.environ.get(BINDING) == given
        config = AsyncEngineArgs(
            str(checkpoint), data_parallel_size=2, **arguments
        ).create_engine_config()
        assert config.parallel_config.distributed_executor_backend == "mp"
        assert batch_places(config) == 2 * config.scheduler_config.max_num_seqs
        parts = os.environ[BINDING].split("|")
        n_cores = len(os.sched_getaffinity(0))
        assert len(parts) == (2 if given is None and n_cores > 1 else 1)
