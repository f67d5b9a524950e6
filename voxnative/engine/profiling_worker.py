"""The real CPU worker and runner, which also keep what each step took, by part.

Chosen by ``worker_cls``; the engine that serves runs none of this. The clocks read a CPU's time:
a GPU's kernels run behind them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch
from torch import nn

from voxnative.engine.runner_cpu import SpeechCPUModelRunner
from voxnative.engine.worker_cpu import SpeechCPUWorker
from voxnative.nn.vae_stream import decode_chunk


class ModuleClocks:
    """Seconds inside some modules since the last :meth:`take`, by forward hooks.

    Args:
        modules: name of a part -> module; a module may run several times a step.
    """

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        self._spent: dict[str, float] = defaultdict(float)
        self._calls: dict[str, int] = defaultdict(int)
        for name, module in modules.items():
            self._attach(name, module)

    def _attach(self, name: str, module: nn.Module) -> None:
        entered: list[float] = []

        def before(_module: nn.Module, _args: Any) -> None:
            entered.append(time.perf_counter())

        def after(_module: nn.Module, _args: Any, _output: Any) -> None:
            self._spent[name] += time.perf_counter() - entered.pop()
            self._calls[name] += 1

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)

    def take(self) -> tuple[dict[str, float], dict[str, int]]:
        """Seconds and calls by part; starts again from nothing."""
        taken = dict(self._spent), dict(self._calls)
        self._spent.clear()
        self._calls.clear()
        return taken


class ProfilingRunner(SpeechCPUModelRunner):
    """Keeps one entry a step that did nothing but decode."""

    def load_model(self, load_dummy_weights: bool = False) -> None:
        super().load_model(load_dummy_weights)
        speech = self.speech
        self.clocks = ModuleClocks(
            {
                "base_lm": self.model.base_lm,
                "residual_lm": self.model.residual_lm,
                "stop_head": self.model.stop,
                "dit": speech.feat_decoder.estimator,
                "local_encoder": speech.feat_encoder,
                "vae_decoder": speech.audio_vae.decoder,
            }
        )
        self.steps: list[dict[str, Any]] = []
        self._ended = 0.0
        self._step: dict[str, Any] = {}

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        now = time.perf_counter()
        n_tokens = scheduler_output.num_scheduled_tokens
        self._step = {
            "n_rows": len(n_tokens),
            "is_decode": bool(n_tokens) and set(n_tokens.values()) == {1},
            "began": now,
            "between_steps": now - self._ended,
        }
        self.clocks.take()
        return super().execute_model(scheduler_output, *args, **kwargs)

    def _model_forward(self, *args: Any, **kwargs: Any) -> Any:
        entered = time.perf_counter()
        output = super()._model_forward(*args, **kwargs)
        self._step["prepare"] = entered - self._step["began"]
        self._step["forward"] = time.perf_counter() - entered
        return output

    def _side_path(self, request_ids: list[str], rows: torch.Tensor) -> torch.Tensor:
        entered = time.perf_counter()
        waves = super()._side_path(request_ids, rows)
        self._step["side_path"] = time.perf_counter() - entered
        n = len(request_ids)
        self._step["context"] = float(self.input_batch.num_computed_tokens_cpu[:n].mean())
        return waves

    def sample_tokens(self, grammar_output: Any) -> Any:
        output = super().sample_tokens(grammar_output)
        self._ended = time.perf_counter()
        if self._step.get("is_decode") and "side_path" in self._step:
            spent, calls = self.clocks.take()
            whole = self._ended - self._step["began"]
            self.steps.append(self._step | {"whole": whole, "parts": spent, "calls": calls})
        return output


class ProfilingWorker(SpeechCPUWorker):
    """Worker with a profiling runner; the methods below are called by ``collective_rpc``."""

    runner_class = ProfilingRunner
    model_runner: ProfilingRunner

    def take_steps(self) -> list[dict[str, Any]]:
        """The entries since the last call."""
        steps, self.model_runner.steps = self.model_runner.steps, []
        return steps

    def measured_rates(self, dtype: str) -> dict[str, Any]:
        """Copy bandwidth and matrix products of this worker, on the threads that it has."""
        from voxnative.bench.machine_rates import measure_rates

        return measure_rates("cpu", dtype)

    def vae_sizes(self) -> dict[str, int]:
        """Weights of the VAE's decoder, and values of state that a request carries."""
        runner = self.model_runner
        decoder = runner.speech.audio_vae.decoder
        return {
            "vae_weights": sum(parameter.numel() for parameter in decoder.parameters()),
            "vae_state": sum(tail[0].numel() for tail in runner.states.vae_tails),
        }

    @torch.inference_mode()
    def vae_flops(self, n_rows: int) -> int:
        """Multiplications and additions of one decoded patch a row, counted as it runs."""
        from torch.utils.flop_counter import FlopCounterMode

        runner = self.model_runner
        config = runner.states.config
        latents = torch.zeros(n_rows, config.patch_size, config.feat_dim)
        tails = [tail[:1].expand(n_rows, -1, -1).clone() for tail in runner.states.vae_tails]
        with FlopCounterMode(display=False) as counter:
            decode_chunk(self.model_runner.speech.audio_vae, latents, tails)
        return int(counter.get_total_flops())
