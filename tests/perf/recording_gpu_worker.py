"""The real CUDA worker and runner, which also keep latents, force them, and time the parts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from tests.perf.timeline import timeline
from voxnative.engine.runner_gpu import SpeechGPUModelRunner
from voxnative.engine.worker_gpu import SpeechGPUWorker
from voxnative.live_request import LiveRequest, StepSamples
from voxnative.side_path import SidePath


class RecordingSidePath(SidePath):
    """Keeps each request's patches by its seed; can feed back the patches of an earlier run.

    Until `begin_recording` it does nothing of its own, and costs no time.
    """

    is_recording = False

    def begin_recording(self, forced: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.is_recording = True
        self.made: dict[int, list[torch.Tensor]] = {}
        self.embedded: dict[int, list[torch.Tensor]] = {}
        self.heard: dict[int, list[torch.Tensor]] = {}  # what the language models said, [2H] a step
        self.batch_sizes: dict[int, list[int]] = {}
        self.forced = forced

    def _step_group(
        self,
        n_timesteps: int,
        rows: list[int],
        requests: list[LiveRequest],
        token_rows: np.ndarray,
        hidden: torch.Tensor,
    ) -> StepSamples:
        samples = super()._step_group(n_timesteps, rows, requests, token_rows, hidden)
        if not self.is_recording:
            return samples
        for row, request in enumerate(requests):
            seed, step = request.params.seed, request.n_steps - 1
            self.made.setdefault(seed, []).append(self.patches[row].clone())
            self.embedded.setdefault(seed, []).append(self.embeds[row].clone())
            self.heard.setdefault(seed, []).append(self.hidden[row].clone())
            self.batch_sizes.setdefault(seed, []).append(len(requests))
            forced = self.forced.get(seed)
            if forced is not None and step < len(forced[0]):
                # Behind the copies that the decoder and the history take: those stay as made.
                self.state.previous_patch[request.slot].copy_(forced[0][step])
                self.state.next_embed[request.slot].copy_(forced[1][step])
        return samples


class RecordingGPURunner(SpeechGPUModelRunner):
    """Puts the recording side path in place and times what the main stream does."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        side_path = self.model_state.side_path
        side_path.__class__ = RecordingSidePath
        self.marks: list[list[torch.cuda.Event]] = []
        self.n_preempted = 0
        self.is_timing = False

    def _mark(self, marks: list[torch.cuda.Event]) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        marks.append(event)

    def finish_requests(self, scheduler_output: Any) -> None:
        self.n_preempted += len(scheduler_output.preempted_req_ids or ())
        super().finish_requests(scheduler_output)

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_timing:
            return super().execute_model(*args, **kwargs)
        marks: list[torch.cuda.Event] = []
        self._mark(marks)
        output = super().execute_model(*args, **kwargs)
        self._mark(marks)
        self.marks.append(marks)
        return output

    def sample_tokens(self, grammar_output: Any) -> Any:
        output = super().sample_tokens(grammar_output)
        if self.is_timing and self.marks and len(self.marks[-1]) == 2:
            self._mark(self.marks[-1])
        return output


class RecordingGPUWorker(SpeechGPUWorker):
    """Worker with a recording runner; the methods below are called by ``collective_rpc``."""

    def _make_model_runner(self) -> Any:
        return RecordingGPURunner(self.vllm_config, self.device)

    def record(self, force_last: bool) -> None:
        """Forget what was recorded; with `force_last` feed it back from now on."""
        side_path = self.model_runner.model_state.side_path
        forced: dict[int, Any] = {}
        if force_last:
            forced = {
                seed: (torch.stack(patches), torch.stack(side_path.embedded[seed]))
                for seed, patches in side_path.made.items()
            }
            self.heard_alone = {
                seed: torch.stack(hidden) for seed, hidden in side_path.heard.items()
            }
        side_path.begin_recording(forced)

    def keep_record(self, file: str) -> None:
        """Write what was recorded, for an engine of another layout to be fed with."""
        side_path = self.model_runner.model_state.side_path
        kinds = ("made", "embedded", "heard")
        torch.save(
            {
                kind: {
                    seed: torch.stack(rows).cpu() for seed, rows in getattr(side_path, kind).items()
                }
                for kind in kinds
            },
            file,
        )

    def feed_record(self, file: str) -> None:
        """Feed back from now on what another engine's `keep_record` wrote."""
        kept = torch.load(file, map_location=self.device)
        self.heard_alone = kept["heard"]
        self.model_runner.model_state.side_path.begin_recording(
            {seed: (patches, kept["embedded"][seed]) for seed, patches in kept["made"].items()}
        )

    def compare(self) -> dict[str, Any]:
        """Patches made since `record(True)` against the ones that were fed back."""
        side_path = self.model_runner.model_state.side_path
        torch.cuda.synchronize()
        result = {}
        for seed, (patches, _) in side_path.forced.items():
            made = torch.stack(side_path.made.get(seed, [])).flatten(1).float()
            n = min(len(made), len(patches))
            expected = patches[:n].flatten(1).float()
            cosine = torch.nn.functional.cosine_similarity(made[:n], expected)
            error = (made[:n] - expected).norm(dim=1) / expected.norm(dim=1)
            hidden = torch.stack(side_path.heard.get(seed, []))[:n].float()
            alone = self.heard_alone[seed][:n].float()
            hidden_cosine = torch.nn.functional.cosine_similarity(hidden, alone)
            result[str(seed)] = {
                "patches": n,
                "identical": int((made[:n] == expected).all(dim=1).sum()),
                "cosine_min": float(cosine.min()),
                "relative_error_max": float(error.max()),
                "hidden_cosine_min": float(hidden_cosine.min()),
                "batch_sizes": sorted(set(side_path.batch_sizes[seed])),
            }
        return result

    def end_recording(self) -> None:
        """Forget all records and keep no more."""
        side_path = self.model_runner.model_state.side_path
        side_path.begin_recording({})
        side_path.is_recording = False

    def n_preempted(self) -> int:
        """Preemptions so far."""
        return self.model_runner.n_preempted

    def profile_device(self, is_on: bool) -> dict[str, Any]:
        """Switch the profiler on, or off: what the device did in between, and how long it idled."""
        if is_on:
            torch.cuda.synchronize()
            activities = [torch.profiler.ProfilerActivity.CUDA]
            self.device_profiler = torch.profiler.profile(activities=activities)
            self.device_profiler.start()
            return {}
        torch.cuda.synchronize()
        self.device_profiler.stop()
        kind = torch.autograd.DeviceType.CUDA
        spans = [
            (event.time_range.start, event.time_range.end, event.name)
            for event in self.device_profiler.events()
            if event.device_type == kind
        ]
        return timeline(spans)

    def time_steps(self, is_timing: bool) -> dict[str, Any]:
        """Switch timing on or off; when off, medians of the steps timed since it was on."""
        runner = self.model_runner
        runner.is_timing = is_timing
        if is_timing:
            runner.marks = []
            return {}
        torch.cuda.synchronize()
        steps = [marks for marks in runner.marks if len(marks) == 3]
        parts = {
            "language_models_ms": [a.elapsed_time(b) for a, b, _ in steps],
            "sampling_and_patches_ms": [b.elapsed_time(c) for _, b, c in steps],
            "period_ms": [x[0].elapsed_time(y[0]) for x, y in pairwise(steps)],
        }
        medians = {name: float(np.median(values)) for name, values in parts.items() if values}
        return {"steps": len(steps)} | medians
