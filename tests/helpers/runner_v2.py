"""Our Model Runner V2 under vLLM's asynchronous scheduler on a CPU, one engine step at a time.

    TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 python -m tests.helpers.runner_v2 OUT.npz

V2 is CUDA's runner. vLLM 0.32 can run it on a CPU, for Triton's CPU backend; here Triton's
interpreter takes that place. Everything but streams, graphs and kernels is what runs on a GPU.
The engine is cramped: prompts are prefilled in pieces, and three long requests do not fit. Writes
each request's samples and prints what happened as JSON.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from triton.backends import backends

from tests.helpers.runner_v2_calls import with_audio

# vLLM looks for a CPU backend by name; with TRITON_INTERPRET=1 no kernel is ever compiled.
backends.setdefault("cpu", SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True)))

from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.v1.engine.core import EngineCore  # noqa: E402
from vllm.v1.engine.input_processor import InputProcessor  # noqa: E402
from vllm.v1.executor.uniproc_executor import UniProcExecutor  # noqa: E402
from vllm.v1.worker.cpu_worker import CPUWorker  # noqa: E402

from voxnative.async_api import SHIPPED_CHECKPOINT  # noqa: E402
from voxnative.config import VoxConfig  # noqa: E402
from voxnative.engine.engine_config import ADMISSION_V2  # noqa: E402
from voxnative.engine.engine_input import engine_input, sampling_params  # noqa: E402
from voxnative.engine.runner_gpu import SpeechGPUModelRunner  # noqa: E402
from voxnative.engine.start import engine_args  # noqa: E402
from voxnative.engine.worker_rpc import SpeechWorkerRpc  # noqa: E402
from voxnative.kv_memory import kv_bytes_per_position  # noqa: E402
from voxnative.speech_request import RequestBuilder  # noqa: E402
from voxnative.tokenizer import TextTokenizer  # noqa: E402

KV_POSITIONS = 160  # five blocks of a CPU, one of them vLLM's own
TOKENS_A_STEP = 12


class CountingRunner(SpeechGPUModelRunner):
    """Counts what the scheduler asks for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.n_preempted = 0
        self.cached: list[int] = []
        self.most_at_once = 0

    def finish_requests(self, scheduler_output: Any) -> None:
        self.n_preempted += len(scheduler_output.preempted_req_ids or ())
        super().finish_requests(scheduler_output)

    def add_requests(self, scheduler_output: Any) -> None:
        self.cached += [new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs]
        self.most_at_once = max(self.most_at_once, len(scheduler_output.num_scheduled_tokens))
        super().add_requests(scheduler_output)


class CPUWorkerV2(SpeechWorkerRpc, CPUWorker):
    """Stock CPU worker with the runner that CUDA has."""

    def init_device(self) -> None:
        super().init_device()
        assert self.use_v2_model_runner
        self.model_runner = CountingRunner(self.vllm_config, torch.device("cpu"))


class Engine:
    """vLLM's engine core in this process.

    Args:
        settings: further arguments of the engine.
    """

    def __init__(self, **settings: Any) -> None:
        self.config = VoxConfig.from_dir(SHIPPED_CHECKPOINT)
        args = engine_args(
            SHIPPED_CHECKPOINT,
            self.config,
            dtype="float32",
            max_num_seqs=3,
            max_model_len=96,
            max_num_batched_tokens=TOKENS_A_STEP,
            kv_cache_memory_bytes=KV_POSITIONS * kv_bytes_per_position(self.config, "float32"),
            worker_cls=f"{CPUWorkerV2.__module__}.{CPUWorkerV2.__qualname__}",
            **settings,
        )
        vllm_config = args.create_engine_config()
        # As on CUDA: the CPU platform has V1's processors and no asynchronous scheduling.
        vllm_config.model_config.logits_processors = [ADMISSION_V2]
        vllm_config.scheduler_config.async_scheduling = True
        self.core = EngineCore(vllm_config, UniProcExecutor, log_stats=False)
        assert self.core.batch_queue_size == 2
        self.inputs = InputProcessor(vllm_config)
        tokenizer = TextTokenizer.from_dir(SHIPPED_CHECKPOINT)
        self.builder = RequestBuilder(self.config, tokenizer, args.max_model_len)
        self.runner: CountingRunner = self.core.model_executor.driver_worker.worker.model_runner
        self.waves: dict[str, list[torch.Tensor]] = {}
        self.ends: dict[str, str] = {}
        self.name_of: dict[str, str] = {}

    def submit(self, name: str, lora: LoRARequest | None = None, **arguments: Any) -> None:
        request = self.builder.build(**arguments)
        core_request = self.inputs.process_inputs(
            name,
            engine_input(request.prompt, name),
            sampling_params(request.params, request.n_max_steps, self.config),
            ("generate",),
            lora_request=lora,
        )
        admitted, wave = self.core.preprocess_add_request(core_request)
        self.core.add_request(admitted, wave)
        self.name_of[admitted.request_id] = name
        self.waves[name] = []

    def abort(self, name: str) -> None:
        self.core.abort_requests([i for i, known in self.name_of.items() if known == name])

    def step(self) -> None:
        outputs, is_executed = self.core.step_fn()
        self.core.post_step(is_executed)
        for client in (outputs or {}).values():
            for output in client.outputs:
                name = self.name_of[output.request_id]
                if output.pooling_output is not None:
                    self.waves[name].append(output.pooling_output.clone())
                if output.finish_reason is not None:
                    self.ends[name] = str(output.finish_reason)

    def run(self) -> None:
        for _ in range(1000):
            if not (self.core.scheduler.has_requests() or self.core.batch_queue):
                return
            self.step()
        raise RuntimeError(f"requests did not end: {self.ends}")


def main() -> None:
    engine = Engine()
    states = engine.runner.states
    report: dict[str, Any] = {"left_by_warm_up": sorted(states.slot_of)}
    engine.submit("alone", **with_audio("alone"))
    engine.run()
    engine.submit("together", **with_audio("alone"))
    engine.submit("five steps", **with_audio("five steps"))
    engine.step()
    engine.submit("other", **with_audio("other"))  # arrives while others decode
    engine.run()
    for name in ("voice", "voice again", "continued"):
        engine.submit(name, **with_audio(name.removesuffix(" again")))
        engine.run()
    report["cached"] = list(engine.runner.cached)
    engine.submit("gone", **with_audio("long"))
    engine.submit("stays", **with_audio("alone"))
    for _ in range(8):
        engine.step()
    engine.abort("gone")
    engine.run()
    assert engine.runner.n_preempted == 0
    for i in range(3):
        engine.submit(f"long {i}", **with_audio("long"))
    engine.run()
    report |= {
        "ends": engine.ends,
        "patches": {name: len(waves) for name, waves in engine.waves.items()},
        "preempted": engine.runner.n_preempted,
        "most_at_once": engine.runner.most_at_once,
        "left": sorted(states.slot_of),
        "replays_left": len(engine.runner.model_state.replays),
    }
    np.savez(sys.argv[1], **{n: torch.cat(w).numpy() for n, w in engine.waves.items() if w})
    print("REPORT", json.dumps(report), flush=True)


if __name__ == "__main__":
    # Under the name that the worker's class is found by.
    from tests.helpers import runner_v2

    runner_v2.main()
