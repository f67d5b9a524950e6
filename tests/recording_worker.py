"""The real CPU worker and runner, which also keep what tests ask for: latents and counts."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

from voxnative.engine.runner_cpu import SpeechCPUModelRunner
from voxnative.engine.worker_cpu import SpeechCPUWorker
from voxnative.nn.cfm import solve, sway_grid
from voxnative.nn.vae_stream import decode_chunk


class RecordingRunner(SpeechCPUModelRunner):
    """Keeps each request's patches and what the scheduler did to it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.latents: dict[str, list[torch.Tensor]] = {}
        self.batch_sizes: dict[str, list[int]] = {}
        self.cached_tokens: dict[str, int] = {}
        self.prefill_chunks: dict[str, list[int]] = {}
        self.n_resumed = 0
        self.n_encoded = 0
        self.fails = False
        # Seconds of the last steps by part; a list is cheap enough to keep always.
        self.forward_s: list[float] = []
        self.side_path_s: list[float] = []
        self.step_s: list[float] = []

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fails:
            raise RuntimeError("a step that was told to fail")
        self.n_resumed += len(scheduler_output.scheduled_cached_reqs.resumed_req_ids)
        self.n_encoded += sum(map(len, scheduler_output.scheduled_encoder_inputs.values()))
        for request in scheduler_output.scheduled_new_reqs:
            self.cached_tokens[request.req_id] = request.num_computed_tokens
        for request_id, n_tokens in scheduler_output.num_scheduled_tokens.items():
            self.prefill_chunks.setdefault(request_id, []).append(n_tokens)
        self.started = time.perf_counter()
        return super().execute_model(scheduler_output, *args, **kwargs)

    def _model_forward(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        output = super()._model_forward(*args, **kwargs)
        self.forward_s.append(time.perf_counter() - started)
        return output

    def _side_path(self, *args: Any) -> torch.Tensor:
        started = time.perf_counter()
        waves = super()._side_path(*args)
        self.side_path_s.append(time.perf_counter() - started)
        return waves

    def sample_tokens(self, grammar_output: Any) -> Any:
        output = super().sample_tokens(grammar_output)
        self.step_s.append(time.perf_counter() - self.started)
        made = [i for i, wave in enumerate(output.pooler_output or []) if wave is not None]
        for i in made:
            request_id = output.req_ids[i]
            patch = self.states.previous_patch[self.states.slot_of[request_id]].clone()
            self.latents.setdefault(request_id, []).append(patch)
            self.batch_sizes.setdefault(request_id, []).append(len(made))
        return output


class RecordingWorker(SpeechCPUWorker):
    """Worker with a recording runner; the methods below are called by ``collective_rpc``."""

    runner_class = RecordingRunner
    model_runner: RecordingRunner

    def record(self, request_id: str) -> dict[str, Any] | None:
        """What was kept of the request whose engine id starts so; None: it did not run here."""
        runner = self.model_runner
        known = [key for key in runner.latents if key.startswith(request_id)]
        if not known:
            return None
        (full_id,) = known
        return {
            "latents": torch.stack(runner.latents[full_id]).tolist(),
            "batch_sizes": runner.batch_sizes[full_id],
            "cached_tokens": runner.cached_tokens[full_id],
            "scheduled_tokens": runner.prefill_chunks[full_id],
        }

    def fail(self) -> None:
        """Let the next step raise, as a defect or a broken device would."""
        self.model_runner.fails = True

    def nap(self, seconds: float) -> int:
        """A call that takes its time; returns the replica that ran it."""
        time.sleep(seconds)
        return self.parallel_config.data_parallel_index

    def n_threads(self) -> int:
        """Threads that a network of this process computes on."""
        return torch.get_num_threads()

    def counts(self) -> dict[str, int]:
        """Preempted requests that were resumed, and audio items that were encoded, so far."""
        return {"resumed": self.model_runner.n_resumed, "encoded": self.model_runner.n_encoded}

    def step_times(self) -> dict[str, list[float]]:
        """Seconds of each step since the last call: LM forward, side path, whole step."""
        runner = self.model_runner
        kept = {
            "lm_forward": runner.forward_s,
            "side_path": runner.side_path_s,
            "worker_step": runner.step_s,
        }
        times = {name: list(seconds) for name, seconds in kept.items()}
        for seconds in kept.values():
            seconds.clear()
        return times

    def part_times(self, n_rows: int, n_repeats: int, timesteps: int) -> dict[str, list[float]]:
        """Seconds of each part of the side path in a bare loop, on random inputs."""
        runner = self.model_runner
        nets, states, config = runner.speech, runner.states, runner.states.config
        P, D = config.patch_size, config.feat_dim
        mu = torch.randn(n_rows, config.mu_size)
        noise, cond = torch.randn(2, n_rows, P, D)
        tails = [tail[:1].expand(n_rows, -1, -1).clone() for tail in states.vae_tails]
        grid, cfg = sway_grid(timesteps), torch.full((n_rows,), 2.0)
        estimator = nets.feat_decoder.estimator
        parts: dict[str, Callable[[], Any]] = {
            "cfm": lambda: solve(estimator, noise, grid, mu=mu, cond=cond, cfg=cfg),
            "local_encoder": lambda: nets.embed_patches(noise),
            "vae_decoder": lambda: decode_chunk(nets.audio_vae, noise, tails),
        }
        times: dict[str, list[float]] = {}
        with torch.inference_mode():
            for name, part in parts.items():
                part()
                for _ in range(n_repeats):
                    started = time.perf_counter()
                    part()
                    times.setdefault(name, []).append(time.perf_counter() - started)
        return times

    def forget(self) -> None:
        """Drop what was kept, so that the records do not count as a leak."""
        runner = self.model_runner
        for kept in (runner.latents, runner.batch_sizes, runner.cached_tokens):
            kept.clear()
        runner.prefill_chunks.clear()

    def resident_bytes(self) -> int:
        """Resident memory of the worker process, after a collection of garbage."""
        gc.collect()
        with open("/proc/self/statm") as statm:
            n_pages = int(statm.read().split()[1])
        return n_pages * 4096
