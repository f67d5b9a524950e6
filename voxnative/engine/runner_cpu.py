"""Model Runner V1 (CPU) with the side path hooked in behind sampling."""

from typing import Any

import torch
from einops import rearrange
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from voxnative.decode_step import decode_step, prime_continuation
from voxnative.engine.engine_input import step_params
from voxnative.engine.lora_manager import SpeechLoRARunner
from voxnative.engine.model import VoxCPM2ForSpeech
from voxnative.engine.options import SpeechOptions
from voxnative.engine.processor import AUDIO_MODALITY
from voxnative.nn.fused import fuse_local_networks
from voxnative.request_state import RequestStates
from voxnative.units import MAX_STEPS


class SpeechCPUModelRunner(SpeechLoRARunner, CPUModelRunner):
    """Stock runner plus: admit and free side-path state, replay embeddings, step, emit.

    Source: vLLM 0.32, ``vllm/v1/worker/gpu_model_runner.py`` (``execute_model``,
    ``_model_forward``, ``sample_tokens``), which the CPU runner inherits.
    """

    states: RequestStates

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        if self.use_async_scheduling:
            raise ValueError("async_scheduling=True is not valid on the CPU; valid: False")

    def load_model(self, load_dummy_weights: bool = False) -> None:
        """Load the model, then make the container of per-request state."""
        super().load_model(load_dummy_weights)
        model = self.model
        assert isinstance(model, VoxCPM2ForSpeech)
        self.speech = model.speech
        options = SpeechOptions.from_additional_config(self.vllm_config.additional_config)
        if self.lora_config is None:  # folded layers take adapters in captured steps only
            fuse_local_networks(self.speech, kernels=False)
        if options.compile_solver:
            self.speech.feat_decoder.estimator.compile(dynamic=True)
        self.states = RequestStates(
            model.config,
            model.speech.audio_vae,
            n_slots=self.max_num_reqs,
            max_steps=min(MAX_STEPS, self.max_model_len),
            dtype=self.dtype,
            device=self.device,
        )

    def execute_model(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        """Free ended requests and admit new ones before the batch is prepared."""
        for request_id in scheduler_output.finished_req_ids:
            self.states.remove(request_id)
        for request in scheduler_output.scheduled_new_reqs:
            self.states.add(request.req_id, step_params(request.sampling_params))
        return super().execute_model(scheduler_output, *args, **kwargs)

    def _model_forward(
        self,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        if inputs_embeds is not None:
            self._write_generated_embeds(inputs_embeds)
        return super()._model_forward(
            input_ids, positions, intermediate_tensors, inputs_embeds, **model_kwargs
        )

    def _write_generated_embeds(self, inputs_embeds: torch.Tensor) -> None:
        """Put each generated patch's embedding at its position.

        In decode that is the last one; after a preemption the whole history is replayed,
        never resampled.
        """
        starts = self.query_start_loc.np
        for i, request_id in enumerate(self.input_batch.req_ids):
            first = int(self.input_batch.num_computed_tokens_cpu[i])
            n_tokens = int(starts[i + 1] - starts[i])
            n_prompt = self.requests[request_id].num_prompt_tokens
            skip = max(n_prompt - first, 0)  # prompt positions in this chunk
            if skip >= n_tokens:
                continue
            history = self.states.history[self.states.slot_of[request_id]]
            begin = first + skip - n_prompt
            rows = history[begin : first + n_tokens - n_prompt]
            assert len(rows) == n_tokens - skip, (request_id, begin, len(rows), n_tokens)
            row = int(starts[i])
            inputs_embeds[row + skip : row + n_tokens] = torch.stack(rows)

    def sample_tokens(
        self, grammar_output: GrammarOutput | None
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput | Any:
        """Sample "continue" or "stop", then make the patch of every request that sampled."""
        executed = self.execute_model_state
        request_ids = list(self.input_batch.req_ids)
        output = super().sample_tokens(grammar_output)
        if executed is None:
            return output
        assert isinstance(output, ModelRunnerOutput)
        assert output.req_ids == request_ids
        # Rows in the middle of a prefill have no sampled token: their state must not move.
        sampled = [i for i, ids in enumerate(output.sampled_token_ids) if ids]
        output.pooler_output = [None] * len(request_ids)
        if not sampled:
            return output
        rows = executed.sample_hidden_states[sampled]
        waves = self._side_path([request_ids[i] for i in sampled], rows)
        for row, i in enumerate(sampled):
            output.pooler_output[i] = waves[row]
        return output

    def _side_path(self, request_ids: list[str], rows: torch.Tensor) -> torch.Tensor:
        """One decode step of these requests; rows ``[B, 2H]`` -> new samples ``[B, n]``."""
        hidden, residual = rows.chunk(2, dim=-1)
        slots = [self.states.slot_of[request_id] for request_id in request_ids]
        for request_id, slot in zip(request_ids, slots, strict=True):
            # vLLM may have moved the request's adapter since the last step.
            self.states.adapter[slot] = self.net_slot(self.requests[request_id].lora_request)
            if not self.states.history[slot]:
                self._prime(self.requests[request_id], slot)
        return decode_step(self.speech, self.states, slots, hidden, residual)

    def _prime(self, request: CachedRequestState, slot: int) -> None:
        """Before its first patch, a continuation takes over the end of its prompt audio."""
        for feature in request.mm_features:
            position = feature.mm_position
            ends_prompt = position.offset + position.length == request.num_prompt_tokens
            if feature.modality != AUDIO_MODALITY or not ends_prompt:
                continue
            # The last prompt position is always computed, never taken from the prefix
            # cache, so the item that covers it is in the encoder cache at this moment.
            config = self.states.config
            rows = self.encoder_cache[feature.identifier][-config.family.n_context_patches :]
            patches = rows[:, config.lm.hidden_size :]
            context = rearrange(patches, "n (p d) -> n p d", p=config.patch_size)
            prime_continuation(self.speech, self.states, slot, context)
