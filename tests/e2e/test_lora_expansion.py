"""Adapters through the engine: parity, mixed batches, KV blocks, loading and unloading."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.adapters import ATTENTION, EVERYWHERE, MLP, write_adapter
from tests.e2e.test_isolation import assert_same
from tests.engines import Recorded, RecordingEngine
from tests.reference import reference_generate
from voxnative.config import VoxConfig
from voxnative.errors import CheckpointError, ParameterError
from voxnative.kv_memory import kv_bytes_per_position

pytestmark = pytest.mark.full_model  # engines of its own: two starts

TOLERANCE = 1e-4
MAX_CPU_LORAS = 5
ROOM = {"enable_lora": True, "max_cpu_loras": MAX_CPU_LORAS, "max_lora_rank": 16}
N_STEPS = 32
N_PARITY_STEPS = 24
TEXT = "one and the same text, long enough to fill more than one block of the cache"
Voice = Callable[[int, float], np.ndarray]

# Four adapters for three places in a batch; the largest rank is the engine's limit.
ADAPTERS: dict[str, dict[str, Any]] = {
    "everything": {
        "r": 6,
        "alpha": 9,
        "target_modules_lm": ATTENTION + MLP,
        "target_modules_dit": [*ATTENTION, *MLP, "in_proj", "cond_proj", "out_proj", "linear_1"],
        **EVERYWHERE,
    },
    "recipe": {"r": 16, "alpha": 16, "enable_lm": True, "enable_dit": True, "form": "ckpt"},
    "flow": {"r": 4, "alpha": 12, "enable_dit": True},
    "words": {"r": 8, "enable_lm": True, "target_modules_lm": ["q_proj", "down_proj"]},
}


@pytest.fixture(scope="module")
def adapters(random_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(folder / name, random_checkpoint, seed=seed, **fields)
        for seed, (name, fields) in enumerate(ADAPTERS.items())
    }


@pytest.fixture(scope="module")
def adapted(random_checkpoint: Path, adapters: dict[str, Path]) -> Iterator[RecordingEngine]:
    """Room for three adapters in one batch; the four are loaded."""
    settings = {"max_num_seqs": 8, "block_size": 32, "max_loras": 3}
    engine = RecordingEngine(random_checkpoint, **settings, **ROOM)
    for name, directory in adapters.items():
        engine.api.load_lora(name, directory)
    yield engine
    engine.api.close()


@pytest.fixture(scope="module")
def cramped_adapted(
    random_checkpoint: Path, adapters: dict[str, Path]
) -> Iterator[RecordingEngine]:
    """Room for two adapters in one batch, 16 positions a step, KV for about three requests."""
    position_bytes = kv_bytes_per_position(VoxConfig.from_dir(random_checkpoint), "float32")
    engine = RecordingEngine(
        random_checkpoint,
        max_num_seqs=8,
        block_size=32,
        max_model_len=128,
        max_num_batched_tokens=16,
        kv_cache_memory_bytes=10 * 32 * position_bytes,
        loras=adapters,
        **ROOM | {"max_loras": 2},
    )
    yield engine
    engine.api.close()


def call(name: str | None, seed: int, n_steps: int = N_STEPS, **fields: Any) -> dict[str, Any]:
    return {"text": TEXT, "seed": seed, "max_steps": n_steps, "lora": name, **fields}


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_equals_the_references_own(
    name: str, adapted: RecordingEngine, adapters: dict[str, Path], voice: Voice
) -> None:
    """With both kinds of recordings, which the adapted projection embeds."""
    reference, prompt = voice(110, 0.3), voice(170, 0.4)
    expected = reference_generate(
        adapted.directory,
        TEXT,
        seed=4,
        n_steps=N_PARITY_STEPS,
        reference=reference,
        prompt=prompt,
        prompt_text="so it was said ",
        adapter=adapters[name],
    )
    recordings = {
        "reference": (reference, 16_000),
        "prompt": (prompt, 16_000),
        "prompt_text": "so it was said ",
    }
    calls = [call(one, 4, N_PARITY_STEPS, **recordings) for one in (name, None)]
    got, plain = adapted.run(*calls)
    error = (got.latents - expected.latents).abs()
    changed = (plain.latents - expected.latents).abs().mean()
    print(f"{name}: latents max {error.max():.2e}, the adapter changes them by {changed:.2f}")
    assert error.max() < TOLERANCE
    assert changed > 0.1
    assert (torch.from_numpy(got.result.samples) - expected.audio).abs().max() < TOLERANCE


def test_an_adapter_equals_merged_weights(
    adapted: RecordingEngine, adapters: dict[str, Path], tmp_path: Path
) -> None:
    merged = tmp_path / "merged"
    shutil.copytree(adapted.directory, merged)
    weights = load_file(merged / "model.safetensors")
    lora = load_file(adapters["everything"] / "lora_weights.safetensors")
    for name in lora:
        module, _, matrix = name.rpartition(".")
        if matrix == "lora_A":
            product = lora[f"{module}.lora_B"].double() @ lora[name].double()
            weight = weights[f"{module}.weight"]
            weights[f"{module}.weight"] = (weight.double() + 1.5 * product).float()
    save_file(weights, merged / "model.safetensors")
    expected = reference_generate(merged, TEXT, seed=8, n_steps=N_PARITY_STEPS).latents
    (got,) = adapted.run(call("everything", 8, N_PARITY_STEPS))
    error = (got.latents - expected).abs().max()
    print(f"merged weights: latents max {error:.2e}")
    assert error < TOLERANCE


def mixed_calls() -> list[dict[str, Any]]:
    """Every adapter, none, one adapter twice, two solver lengths."""
    return [
        call("everything", 1),
        call(None, 1),
        call("recipe", 1),
        call("flow", 1, timesteps=6),
        call("everything", 2, timesteps=6),
        call("words", 3),
        call(None, 2, timesteps=6),
    ]


@pytest.fixture(scope="module")
def solo(adapted: RecordingEngine) -> list[Recorded]:
    return [adapted.run(one)[0] for one in mixed_calls()]


def test_a_mixed_batch_equals_the_solo_runs(adapted: RecordingEngine, solo: list[Recorded]) -> None:
    """Three adapters and none fill every place; the fourth adapter waits for one."""
    together = adapted.run(*mixed_calls())
    assert max(together[1].batch_sizes) >= 5, "the requests hardly met"
    for got, expected, one in zip(together, solo, mixed_calls(), strict=True):
        assert_same(got, expected, f"{one['lora']}, seed {one['seed']}")
    for a, b in ((0, 1), (0, 2), (1, 2), (4, 6)):
        assert not torch.allclose(solo[a].latents, solo[b].latents, atol=0.1)


def test_adapters_never_share_blocks(
    adapted: RecordingEngine, adapters: dict[str, Path], voice: Voice
) -> None:
    """One voice and text: shared by the requests of one adapter, by no others."""
    shared = {"reference": (voice(145, 0.6), 16_000)}
    names = [None, "everything", "words", "everything", None]
    before = adapted.rpc("counts")["encoded"]
    runs = [adapted.run(call(name, 5, 8, **shared))[0] for name in names]
    cached = [run.cached_tokens for run in runs]
    print(f"prompt positions from the prefix cache: {cached}")
    assert cached[:3] == [0, 0, 0]
    assert min(cached[3:]) >= 64
    assert adapted.rpc("counts")["encoded"] - before == 1, "the recording is encoded once for all"
    assert_same(runs[3], runs[1], "from its own blocks")
    assert_same(runs[4], runs[0], "without an adapter, from its own blocks")


def test_a_name_given_again_shares_nothing_with_the_adapter_before(
    adapted: RecordingEngine, random_checkpoint: Path, tmp_path: Path
) -> None:
    """Also from the same path, as training rewrites its folder "latest"."""
    runs = []
    for seed in (1, 2):
        write_adapter(tmp_path / "latest", random_checkpoint, seed=seed, enable_lm=True)
        adapted.api.load_lora("latest", tmp_path / "latest")
        runs += adapted.run(call("latest", 6, 8))
        adapted.api.unload_lora("latest")
    assert [run.cached_tokens for run in runs] == [0, 0]
    assert not torch.allclose(runs[0].latents, runs[1].latents, atol=0.1)


def resident(engine: RecordingEngine) -> int:
    return len(engine.wait(engine.api._speech._engine.list_loras()))


def test_unloading_waits_for_the_requests_in_flight(
    adapted: RecordingEngine, adapters: dict[str, Path], solo: list[Recorded]
) -> None:
    speech = adapted.api._speech

    async def scene() -> Any:
        await speech.load_lora("leaving", adapters["everything"])
        before = await speech._engine.list_loras()
        running = speech.run(await speech.prepare(**call("leaving", 1)))
        waiting = speech.run(await speech.prepare(**call("leaving", 2, timesteps=6)))
        chunks = running.chunks()
        parts = [(await anext(chunks)).samples]
        await speech.unload_lora("leaving")
        with pytest.raises(ParameterError, match=r"field 'lora': 'leaving' .*; valid: everything,"):
            await speech.prepare(**call("leaving", 1))
        parts += [chunk.samples async for chunk in chunks]
        during = await speech._engine.list_loras()
        second = await waiting.result()
        del running, waiting, chunks
        for _ in range(50):
            after = await speech._engine.list_loras()
            if after != before:
                break
            await asyncio.sleep(0.1)
        return np.concatenate(parts), second, before, during, after

    samples, second, before, during, after = adapted.wait(scene())
    assert np.abs(samples - solo[0].result.samples).max() < TOLERANCE
    assert np.abs(second.samples - solo[4].result.samples).max() < TOLERANCE
    assert during == before
    assert len(after) == len(before) - 1


def test_what_cannot_be_loaded_says_why(
    adapted: RecordingEngine, adapters: dict[str, Path], tmp_path: Path
) -> None:
    n_before = resident(adapted)
    with pytest.raises(ParameterError, match=r"field 'lora_name': 'words' .* not in use"):
        adapted.api.load_lora("words", adapters["words"])
    with pytest.raises(CheckpointError, match=r"cannot read .*lora_config\.json"):
        adapted.api.load_lora("nowhere", tmp_path)
    wide = write_adapter(tmp_path / "wide", adapted.directory, seed=1, r=32, enable_dit=True)
    with pytest.raises(CheckpointError, match=r"lora_config\.r: 32 is not valid .* 1 to 16"):
        adapted.api.load_lora("wide", wide)
    assert resident(adapted) == n_before
    adapted.api.load_lora("fifth", adapters["words"])
    with pytest.raises(ParameterError, match=f"at most {MAX_CPU_LORAS} adapters"):
        adapted.api.load_lora("sixth", adapters["words"])
    adapted.api.unload_lora("fifth")
    with pytest.raises(ParameterError, match="field 'lora_name': 'fifth'"):
        adapted.api.unload_lora("fifth")
    with pytest.raises(ParameterError, match="field 'lora': 7"):
        adapted.api.synthesize(TEXT, lora=7)


def test_preempted_requests_keep_their_adapters(
    cramped_adapted: RecordingEngine, solo: list[Recorded]
) -> None:
    """Four adapters take turns in two places, while there is KV for a part of the requests."""
    together = cramped_adapted.run(*mixed_calls())
    assert cramped_adapted.rpc("counts")["resumed"] > 0
    for got, expected, one in zip(together, solo, mixed_calls(), strict=True):
        assert_same(got, expected, f"{one['lora']}, seed {one['seed']}, cramped")
    assert cramped_adapted.rpc("speech_requests") == []
