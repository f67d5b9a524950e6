"""Correctness on the GPU: stages against fp32, deltas against the whole, a request among others."""

from __future__ import annotations

import asyncio
import copy
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.perf.load import TEXT
from tests.perf.parts import N_TIMESTEPS, random_nets
from voxnative.async_api import AsyncVoxNative
from voxnative.config import VoxConfig
from voxnative.kv_memory import kv_bytes_per_position
from voxnative.nn.cfm import solve, sway_grid
from voxnative.nn.flow_plan import FlowPlan, solve_planned
from voxnative.nn.fused import fuse_local_networks
from voxnative.nn.vae_stream import PRECISIONS, StreamDecoder, init_stream

RECORDING_WORKER = "tests.perf.recording_gpu_worker.RecordingGPUWorker"


def difference(got: Tensor, expected: Tensor) -> dict[str, float]:
    """Largest and relative error, and the cosine."""
    got, expected = got.float().flatten(), expected.float().flatten()
    return {
        "max": float((got - expected).abs().max()),
        "relative": float((got - expected).norm() / expected.norm()),
        "cosine": float(torch.nn.functional.cosine_similarity(got, expected, dim=0)),
    }


def snr_db(got: Tensor, expected: Tensor) -> float:
    noise = (got - expected).float().square().sum()
    return float(10 * torch.log10(expected.float().square().sum() / noise.clamp(min=1e-30)))


@torch.inference_mode()
def stages_report(config: VoxConfig, device: torch.device, *, kernels: bool) -> dict[str, Any]:
    """Each stage in bf16 with fused weights (and kernels), against the plain networks in fp32.

    Both have the same weights, rounded to bf16.
    """
    dtype = torch.bfloat16
    fast = random_nets(config, dtype, device)
    exact = copy.deepcopy(fast).float()
    eight = copy.deepcopy(fast) if device.type == "cuda" else None
    fuse_local_networks(fast, kernels=kernels)
    report: dict[str, Any] = {}
    P, D = config.patch_size, config.feat_dim
    mean_mode = config.dit_mean_mode
    for B in (1, 3, 64):
        torch.manual_seed(B)
        x, cond = torch.randn(2, B, P, D, device=device).bfloat16().float()
        hidden, residual = torch.randn(2, B, config.lm.hidden_size, device=device).bfloat16()
        cfg = torch.full((B,), 2.0, device=device)
        mu = fast.dit_condition(hidden, residual)
        mu_exact = exact.dit_condition(hidden.float(), residual.float())
        plan = FlowPlan(fast.feat_decoder.estimator, N_TIMESTEPS, device, mean_mode=mean_mode)
        patches = solve_planned(fast.feat_decoder.estimator, plan, x, mu=mu, cond=cond, cfg=cfg)
        grid = sway_grid(N_TIMESTEPS, device=device)
        patches_exact = solve(
            exact.feat_decoder.estimator, x, grid, mu=mu_exact, cond=cond, cfg=cfg
        )
        t = torch.full((B,), 0.5, device=device)
        velocity = fast.feat_decoder.estimator(x, mu, t, 0 * t, cond)
        velocity_exact = exact.feat_decoder.estimator(x, mu.float(), t, 0 * t, cond)
        report[str(B)] = {
            "projections": difference(mu, mu_exact),
            "velocity": difference(velocity, velocity_exact),
            "patch": difference(patches, patches_exact),
            "embedding": difference(fast.embed_patches(x.to(dtype)), exact.embed_patches(x)),
        }
    if eight is not None:
        fuse_local_networks(eight, kernels=kernels, fp8=True)
        velocity = eight.feat_decoder.estimator(x, mu, t, 0 * t, cond)
        report["fp8 velocity"] = difference(velocity, velocity_exact)
    report["vae"] = _vae_report(exact, device, P, D, kernels=kernels)
    return report


def _vae_report(
    nets: Any, device: torch.device, P: int, D: int, *, kernels: bool
) -> dict[str, Any]:
    """Deltas against the whole decode in fp32, and each precision's distance from fp32."""
    latents = torch.randn(3, 6 * P, D, device=device)
    decoders = {name: StreamDecoder(nets.audio_vae, name, kernels=kernels) for name in PRECISIONS}
    waves = {}
    for name, decoder in decoders.items():
        if name == "fp16" and device.type != "cuda":
            continue
        tails = init_stream(nets.audio_vae, 3, device, decoder.dtype)
        chunks = []
        for chunk in latents.split(P, dim=1):
            wave, tails = decoder.decode(chunk, tails)
            chunks.append(wave)
        waves[name] = torch.cat(chunks, dim=1)
    with decoders["fp32"]._matrix_precision():
        whole = nets.audio_vae.decode(latents)
    exact = copy.deepcopy(nets.audio_vae).double().decode(latents.double()).float()
    return {
        "deltas_against_whole_max": float((waves["fp32"] - whole).abs().max()),
        "snr_db": {name: round(snr_db(wave, exact), 1) for name, wave in waves.items()},
    }


async def cramped_isolation(
    checkpoint: Path, settings: dict[str, Any], *, n_others: int, n_patches: int
) -> dict[str, Any]:
    """As `isolation`, with a KV cache too small for all, so that requests are preempted."""
    block = 16
    positions = len(TEXT) + n_patches + 2 * block
    cramped_tokens = positions * max(2, n_others // 4)
    config = VoxConfig.from_dir(checkpoint)
    n_bytes = cramped_tokens * kv_bytes_per_position(config, settings.get("dtype", "float32"))
    used = {**settings, "kv_cache_memory_bytes": n_bytes, "max_model_len": 512}
    started = time.perf_counter()
    async with AsyncVoxNative(checkpoint, **used) as speech:
        ready_s = round(time.perf_counter() - started, 1)  # everything was compiled before
        return {"ready_s": ready_s} | await isolation(speech, n_others, n_patches)


async def isolation(speech: AsyncVoxNative, n_others: int, n_patches: int) -> dict[str, Any]:
    """A few requests alone, then fed back their own latents among others that come and go.

    The others say other things: with one text for all, keys of the wrong request hardly show.
    """
    engine = speech._engine
    seeds = list(range(9000, 9004))

    async def speak(
        seed: int, delay_s: float = 0.0, steps: int = n_patches, text: str = TEXT
    ) -> int:
        await asyncio.sleep(delay_s)
        arguments = {"seed": seed, "max_steps": steps, "min_steps": steps - 1, "max_silence_s": 0}
        return (await speech.synthesize(text, cfg=2.0, timesteps=10, **arguments)).n_patches

    await engine.collective_rpc("record", args=(False,))
    alone = [await speak(seed) for seed in seeds]
    await engine.collective_rpc("record", args=(True,))
    chance = random.Random(3)
    words = TEXT.split()
    others = [
        speak(
            i,
            0.5 * chance.random(),
            chance.randint(n_patches // 2, 2 * n_patches),
            " ".join(chance.sample(words, len(words))),
        )
        for i in range(n_others)
    ]
    among = await asyncio.gather(*(speak(seed, 0.1) for seed in seeds), *others)
    (compared,) = await engine.collective_rpc("compare")
    (n_preempted,) = await engine.collective_rpc("n_preempted")
    await engine.collective_rpc("end_recording")
    return {
        "patches_alone": alone,
        "patches_among_others": among[: len(seeds)],
        "preemptions": n_preempted,
        "requests": compared,
        "cosine_min": min(c["cosine_min"] for c in compared.values()),
        "hidden_cosine_min": min(c["hidden_cosine_min"] for c in compared.values()),
    }
