"""Model Runner V2 (CUDA) with the side path behind sampling."""

from __future__ import annotations

from typing import Any

import torch
from tqdm import tqdm
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.logger import init_logger
from vllm.utils.mem_utils import format_gib
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from voxnative.engine.lora_manager import SpeechLoRARunner
from voxnative.engine.model_state import SpeechModelState
from voxnative.engine.speech_output import AsyncSpeechOutput, UnsentSamples
from voxnative.side_path import SidePath

# As a child of vLLM's logger: it is configured there, and its level is the user's.
logger = init_logger("vllm.voxnative.runner_gpu")


class SpeechGPUModelRunner(SpeechLoRARunner, GPUModelRunner):
    """Stock runner plus: park preempted requests, queue the side path, emit its samples.

    Source: vLLM 0.32, ``vllm/v1/worker/gpu/model_runner.py`` (``load_model``, which wraps layers
    for LoRA before it makes the model's state, ``finish_requests``, ``sample_tokens``).
    """

    model_state: SpeechModelState

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.side_path_graph_bytes = 0
        self.is_output_rank = get_tensor_model_parallel_rank() == 0
        self.unsent = UnsentSamples(lambda part: self.states.deliver(part))

    @property
    def states(self) -> SidePath:
        """What holds the requests' state, as the CPU runner calls it."""
        return self.model_state.side_path

    def finish_requests(self, scheduler_output: SchedulerOutput) -> None:
        """Tell a preemption, which keeps a request's state, from its end."""
        finished = scheduler_output.finished_req_ids
        if scheduler_output.preempted_req_ids:
            self.unsent.settle()  # whoever resumes finds its whole history
        for request_id in (scheduler_output.preempted_req_ids or set()) - finished:
            self.model_state.park_request(request_id)
        for request_id in finished:
            self.model_state.end_request(request_id)
        super().finish_requests(scheduler_output)

    @torch.inference_mode()
    def capture_side_path(self) -> None:
        """Capture the side path's graphs; once, and not in eager mode.

        They do not depend on the KV cache, so that they can be made before it is sized.
        """
        if self.model_config.enforce_eager or self.side_path_graph_bytes:
            return
        side_path = self.model_state.side_path
        n_graphs = side_path.n_graphs
        with tqdm(desc="Capturing side path graphs", total=n_graphs, unit="graph") as bar:

            def on_bucket(name: str, bucket: int) -> None:
                bar.set_postfix_str(f"{name}, batch {bucket}")
                bar.update()

            self.side_path_graph_bytes = max(1, side_path.capture(on_bucket))
        logger.info(
            "Side path: state %s GiB for %d requests, graphs %s GiB for batches of %s",
            format_gib(side_path.state.n_bytes()),
            self.max_num_reqs,
            format_gib(self.side_path_graph_bytes),
            ", ".join(map(str, side_path.buckets)),
        )

    @torch.inference_mode()
    def sample_tokens(self, grammar_output: GrammarOutput | None) -> Any:
        """Sample "continue" or "stop", then queue the patch of every request that sampled."""
        executed = self.execute_model_state
        output = super().sample_tokens(grammar_output)
        if executed is None or not isinstance(output, AsyncModelRunnerOutput):
            return output
        batch = executed.input_batch
        adapters = None
        if self.lora_config is not None:
            requests = self.lora_state.lora_requests
            adapters = [self.net_slot(requests.get(request_id)) for request_id in batch.req_ids]
        samples = self.model_state.speak(batch, executed.hidden_states, adapters)
        if not self.is_output_rank:
            self.unsent.add(samples)
            return output
        return AsyncSpeechOutput(output, samples, self.model_state.side_path.deliver)
