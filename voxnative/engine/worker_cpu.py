"""CPU worker that builds our model runner."""

import atexit
import gc
import os

import torch
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.worker.cpu_worker import CPUWorker

from voxnative.engine.orphan_watch import end_with_front_end
from voxnative.engine.runner_cpu import SpeechCPUModelRunner
from voxnative.engine.worker_rpc import SpeechWorkerRpc


class SpeechCPUWorker(SpeechWorkerRpc, CPUWorker):
    """Stock CPU worker; ``CPUWorker.init_device`` builds its runner directly.

    Source: vLLM 0.32, ``vllm/v1/worker/cpu_worker.py``.
    """

    runner_class = SpeechCPUModelRunner

    def init_device(self) -> None:
        """Initialise the device, then replace the stock runner by ours."""
        # At exit Python looks through every object of vLLM and torch for cycles: longer than the
        # front end waits before it kills the engine. Frozen objects are left alone.
        atexit.register(gc.freeze)
        in_engine = self.parallel_config.distributed_executor_backend is UniProcExecutor
        end_with_front_end(os.getpid() if in_engine else os.getppid())
        super().init_device()
        if self.use_v2_model_runner:
            raise ValueError(
                "VLLM_USE_V2_MODEL_RUNNER=1 is not valid on the CPU; valid: 0 (Model Runner V1)"
            )
        self.model_runner = self.runner_class(self.vllm_config, torch.device("cpu"))
