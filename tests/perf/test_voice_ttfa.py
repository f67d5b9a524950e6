"""First audio with a voice of 10 s: its first and second request, prefix cache on and off, and the
reference implementation beside it; prints JSON, asserts what was computed and not how long it took.

Every round has a recording of its own, so that "first" means that nothing of it is in any cache.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from tests.engines import RecordingEngine
from tests.reference import load_reference
from voxnative.engine.engine_config import CPU_KV_BLOCK

pytestmark = pytest.mark.full_model

Voice = Callable[[int, float], np.ndarray]

VOICE_S, RATE_HZ = 10.0, 16_000
N_ROUNDS = 5
N_STEPS = 4
TEXTS = ("the morning train was late again.", "so we walked along the river into town.")
SETTINGS = {"seed": 1, "cfg": 3.0, "timesteps": 10}


def recordings(voice: Voice, first_hz: int) -> list[np.ndarray]:
    return [voice(first_hz + 7 * index, VOICE_S) for index in range(N_ROUNDS)]


def request(engine: RecordingEngine, text: str, reference: np.ndarray) -> dict[str, Any]:
    """Run one request; its first audio from the call on, and what was computed for it."""

    async def run() -> tuple[str, float]:
        started = time.perf_counter()
        speech = engine.api._speech
        prepared = await speech.prepare(
            text, reference=(reference, RATE_HZ), max_steps=N_STEPS, **SETTINGS
        )
        run = speech.run(prepared, started)
        return run.request_id, (await run.result()).ttfa_s

    before = engine.rpc("counts")["encoded"]
    request_id, ttfa_s = engine.wait(run())
    record = engine.rpc("record", request_id)
    return {
        "ttfa_s": ttfa_s,
        "recordings_encoded": engine.rpc("counts")["encoded"] - before,
        "positions_cached": record["cached_tokens"],
        "positions_computed": record["scheduled_tokens"][0],
    }


def engine_rows(engine: RecordingEngine, voices: list[np.ndarray], cache: str) -> list[dict]:
    """A row for the first and one for the second request with a voice."""
    request(engine, TEXTS[0], voices[0][:RATE_HZ])  # warm, with another recording
    rounds = [[request(engine, text, samples) for text in TEXTS] for samples in voices]
    rows = []
    for which, runs in zip(("first", "second"), zip(*rounds, strict=True), strict=True):
        ttfa_s = [run.pop("ttfa_s") for run in runs]
        assert all(run == runs[0] for run in runs), "the same is computed in every round"
        row = {"system": "voxnative", "prefix_cache": cache, "request": which}
        rows.append(row | ttfa(ttfa_s) | runs[0])
    return rows


def ttfa(seconds: list[float]) -> dict[str, float]:
    ms = [1000 * s for s in seconds]
    return {"ttfa_ms": round(statistics.median(ms), 1), "ttfa_ms_min": round(min(ms), 1)}


def reference_rows(directory: Path, voices: list[np.ndarray], n_threads: int) -> list[dict]:
    """The reference's stream: its public call, which encodes a recording every time, and its
    prompt cache, which keeps the latents and computes the keys and values anew."""
    model = load_reference(directory)
    times: dict[str, list[float]] = {"first": [], "second": [], "second, latents kept": []}

    def first_audio(text: str, started: float, cache: Any) -> float:
        stream = model.generate_with_prompt_cache_streaming(
            text,
            cache,
            max_len=N_STEPS,
            inference_timesteps=SETTINGS["timesteps"],
            cfg_value=SETTINGS["cfg"],
        )
        next(stream)
        stream.close()
        return time.perf_counter() - started

    with threads(n_threads), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "voice.wav"
        for samples in voices:
            soundfile.write(path, samples, RATE_HZ, subtype="FLOAT")
            for which, text in zip(("first", "second"), TEXTS, strict=True):
                started = time.perf_counter()
                cache = model.build_prompt_cache(reference_wav_path=str(path))
                times[which].append(first_audio(text, started, cache))
            times["second, latents kept"].append(first_audio(TEXTS[1], time.perf_counter(), cache))
    return [
        {"system": "voxcpm 2.0.3", "request": which, **ttfa(seconds)}
        for which, seconds in times.items()
    ]


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def without_prefix_cache(speaking: RecordingEngine) -> Iterator[RecordingEngine]:
    engine = RecordingEngine(speaking.directory, enable_prefix_caching=False)
    yield engine
    engine.api.close()


def test_first_audio_of_a_cloned_voice(
    speaking: RecordingEngine, without_prefix_cache: RecordingEngine, voice: Voice, repo: Path
) -> None:
    n_threads = speaking.rpc("n_threads")
    load_before = os.getloadavg()[0]
    cached = engine_rows(speaking, recordings(voice, 100), "on")
    uncached = engine_rows(without_prefix_cache, recordings(voice, 101), "off")
    reference = reference_rows(speaking.directory, recordings(voice, 102), n_threads)
    config = speaking.api.config
    n_patches = -(-round(VOICE_S * RATE_HZ) // config.patch_samples_in)
    report = {
        "machine": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": n_threads,
        "load_average": [round(load_before, 2), round(os.getloadavg()[0], 2)],
        "torch": torch.__version__,
        "voice_s": VOICE_S,
        "voice_patches": n_patches,
        "kv_block": CPU_KV_BLOCK,
        "rows": [
            *cached,
            *uncached,
            *reference,
            {"system": "nano-vllm-voxcpm", "ttfa_ms": None, "why": "runs on CUDA alone"},
        ],
    }
    text = json.dumps(report, indent=1)
    print(text)
    folder = repo / "out" / "perf"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "voice_ttfa.json").write_text(text)

    n_shared = (1 + n_patches) // CPU_KV_BLOCK * CPU_KV_BLOCK  # REF_START and the patches
    assert n_shared > n_patches // 2, "the voice fills too few blocks to show anything"
    for first, second in (cached, uncached):
        assert (first["recordings_encoded"], first["positions_cached"]) == (1, 0)
        assert second["recordings_encoded"] == 0, "latents come from the encoder cache"
    assert cached[1]["positions_cached"] >= n_shared
    # What the cache holds is all that is saved: the rest is computed as without it.
    n_prompt = uncached[1]["positions_computed"]
    assert cached[1]["positions_computed"] == n_prompt - cached[1]["positions_cached"]
    assert uncached[1]["positions_cached"] == 0
