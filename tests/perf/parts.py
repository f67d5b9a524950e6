"""Milliseconds of each part of the side path beside its floor, without an engine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from voxnative.config import LMConfig, VoxConfig
from voxnative.nn.flow_plan import FlowPlan, solve_planned
from voxnative.nn.fused import compile_local_networks, fuse_local_networks
from voxnative.nn.speech_nets import SpeechNets
from voxnative.nn.vae_stream import StreamDecoder
from voxnative.request_state import StepParams
from voxnative.side_path import SidePath

N_TIMESTEPS = 10
# What one H200 was measured to do: copies (read plus write) and bf16 products on random data.
COPY_BYTES_PER_S = 4.3e12
PRODUCT_FLOP_PER_S = 7.8e14


def random_nets(config: VoxConfig, dtype: torch.dtype, device: torch.device) -> SpeechNets:
    """Networks with random weights of unit gain, on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        nets = SpeechNets(config)
    for name, parameter in nets.named_parameters():
        if parameter.ndim == 2 and not name.startswith("audio_vae."):
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    nets = nets.to(device=device, dtype=dtype).eval().requires_grad_(False)
    nets.audio_vae.float()
    for stack in (nets.feat_encoder.encoder, nets.feat_decoder.estimator.decoder):
        stack.cos, stack.sin = stack.cos.float(), stack.sin.float()
    return nets


def stack_parameters(config: LMConfig) -> int:
    """Weights of a transformer's matrices."""
    q, kv = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    layer = config.hidden_size * (2 * q + 2 * kv + 3 * config.intermediate_size)
    return config.num_hidden_layers * layer


def floor_ms(config: LMConfig, tokens: int, passes: int = 1, bytes_each: int = 2) -> float:
    """The larger of reading the weights and multiplying by them, `passes` times."""
    n = stack_parameters(config)
    seconds = max(n * bytes_each / COPY_BYTES_PER_S, 2 * n * tokens / PRODUCT_FLOP_PER_S)
    return 1000 * passes * seconds


def median_ms(call: Callable[[], Any], device: torch.device, n_repeats: int) -> float:
    """Median duration of a call on the device."""
    for _ in range(3):
        call()
    if device.type != "cuda":
        seconds = []
        for _ in range(n_repeats):
            started = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - started)
        return round(1000 * statistics.median(seconds), 4)
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(n_repeats)
    ]
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return round(statistics.median(begin.elapsed_time(end) for begin, end in events), 4)


def captured(call: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """The call as a graph of its own on CUDA."""
    if device.type != "cuda":
        return call
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay


@torch.inference_mode()
def parts_report(
    config: VoxConfig,
    device: torch.device,
    *,
    batches: list[int],
    kernels: bool,
    fp8: bool,
    compiles: bool,
    vae_precision: str,
    n_repeats: int = 30,
) -> dict[str, Any]:
    """One table: for each batch the parts, the whole step, and the floors."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    nets = random_nets(config, dtype, device)
    fuse_local_networks(nets, kernels=kernels, fp8=fp8)
    estimator = nets.feat_decoder.estimator
    if compiles:
        compile_local_networks(nets)
    decoder = StreamDecoder(nets.audio_vae, vae_precision, kernels=kernels)
    P, D = config.patch_size, config.feat_dim
    T = estimator.n_head_tokens + 2 * P
    plan = FlowPlan(estimator, N_TIMESTEPS, device, mean_mode=config.dit_mean_mode)
    rows: dict[str, Any] = {}
    for B in batches:
        x, cond = torch.randn(2, B, P, D, device=device)
        mu = torch.randn(B, config.mu_size, device=device, dtype=dtype)
        cfg = torch.full((B,), 2.0, device=device)
        tokens = torch.randn(2 * B, T, config.dit.hidden_size, device=device, dtype=dtype)
        side = SidePath(nets, decoder, config, B, dtype, device, (N_TIMESTEPS,))
        for i in range(B):
            side.add(str(i), i, StepParams(i, 2.0, N_TIMESTEPS, 1.0, 64))
        side.slots.copy_(torch.arange(B))
        side.decoder_slots.copy_(torch.arange(B))
        side.scalars.normal_()
        side.hidden.normal_()
        side.decoder_patches.normal_()
        patch_step = side._patch_calls[N_TIMESTEPS]
        calls: dict[str, Callable[[], Any]] = {
            "dit_pass": lambda t=tokens: estimator.decoder(t),
            "cfm": lambda x=x, mu=mu, cond=cond, cfg=cfg: solve_planned(
                estimator, plan, x, mu=mu, cond=cond, cfg=cfg
            ),
            "local_encoder": lambda x=x: nets.embed_patches(x.to(dtype)),
            "patches_graph": lambda B=B, call=patch_step.call: call(B),
            "vae_graph": lambda B=B, call=side._sample_call.call: call(B),
        }
        measured = {}
        for name, call in calls.items():
            measured[name] = median_ms(captured(call, device), device, n_repeats)
        hidden = torch.randn(B, 2 * config.lm.hidden_size, device=device, dtype=dtype)
        requests = list(side.live.values())
        started = time.perf_counter()
        for _ in range(n_repeats):
            side._load(requests, np.arange(B), hidden)
        measured["host_ms_to_load_a_step"] = round(
            1000 * (time.perf_counter() - started) / n_repeats, 4
        )
        n_passes = len(plan.steps)
        floors = {
            "dit_pass": floor_ms(config.dit, 2 * B * T),
            "cfm": floor_ms(config.dit, 2 * B * T, n_passes),
            "local_encoder": floor_ms(config.encoder, B * (1 + P)),
            "base_and_residual_lm": floor_ms(config.lm, B) + floor_ms(config.residual_lm, B),
        }
        step = measured["patches_graph"] + measured["vae_graph"]
        rows[str(B)] = {
            "ms": measured,
            "floor_ms": {name: round(ms, 4) for name, ms in floors.items()},
            "side_path_rtf": round(step / 1000 / (config.patch_samples_out / _rate(config)), 4),
        }
        print(B, rows[str(B)], flush=True)
    settings = {
        "kernels": kernels,
        "fp8_dit": fp8,
        "compiled": compiles,
        "vae_precision": vae_precision,
    }
    return {"settings": settings, "dtype": str(dtype), "batches": rows}


def _rate(config: VoxConfig) -> int:
    return config.vae.out_sample_rate_hz
