"""The real CPU worker and runner, which also keep what tests ask for: latents and counts."""

from __future__ import annotations

import gc
from typing import Any

import torch

from voxnative.engine.runner_cpu import SpeechCPUModelRunner
from voxnative.engine.worker_cpu import SpeechCPUWorker


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

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        self.n_resumed += len(scheduler_output.scheduled_cached_reqs.resumed_req_ids)
        self.n_encoded += sum(map(len, scheduler_output.scheduled_encoder_inputs.values()))
        for request in scheduler_output.scheduled_new_reqs:
            self.cached_tokens[request.req_id] = request.num_computed_tokens
        for request_id, n_tokens in scheduler_output.num_scheduled_tokens.items():
            self.prefill_chunks.setdefault(request_id, []).append(n_tokens)
        return super().execute_model(scheduler_output, *args, **kwargs)

    def sample_tokens(self, grammar_output: Any) -> Any:
        output = super().sample_tokens(grammar_output)
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

    def record(self, request_id: str) -> dict[str, Any]:
        """What was kept of the request whose engine id starts with ``request_id``."""
        runner = self.model_runner
        (full_id,) = [key for key in runner.latents if key.startswith(request_id)]
        return {
            "latents": torch.stack(runner.latents[full_id]).tolist(),
            "batch_sizes": runner.batch_sizes[full_id],
            "cached_tokens": runner.cached_tokens[full_id],
            "scheduled_tokens": runner.prefill_chunks[full_id],
        }

    def counts(self) -> dict[str, int]:
        """Preempted requests that were resumed, and audio items that were encoded, so far."""
        return {"resumed": self.model_runner.n_resumed, "encoded": self.model_runner.n_encoded}

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
