"""Model Runner V2's state of this model: a thin adapter around ``side_path.SidePath``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import nn
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.mm.encoder_cache import EncoderCache
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.states import RequestState

from voxnative.engine import batch_invariance
from voxnative.engine.batch_rows import decode_rows, replayed_spans, sampling_rows
from voxnative.engine.engine_input import EXTRA_ARGS_KEY, step_params
from voxnative.engine.options import SpeechOptions
from voxnative.engine.processor import AUDIO_MODALITY
from voxnative.live_request import StepSamples
from voxnative.nn.fused import compile_local_networks, fuse_local_networks
from voxnative.nn.lora import NO_ADAPTER
from voxnative.nn.vae_stream import StreamDecoder
from voxnative.side_path import SidePath


class SpeechModelState(DefaultModelState):
    """Admission, generated embeddings in the model's inputs, and the step behind sampling.

    A request's row on the device is the one that the runner gives it (``req_index``); what
    outlives the row, after a preemption, is kept by request id.

    Source: vLLM 0.32, ``vllm/v1/worker/gpu/model_states/interface.py``.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        model: nn.Module,
        encoder_cache: EncoderCache | None,
        device: torch.device,
    ) -> None:
        super().__init__(vllm_config, model, encoder_cache, device)
        options = SpeechOptions.from_additional_config(vllm_config.additional_config)
        is_cuda = device.type == "cuda"
        paged: Any = model
        speech = paged.speech
        use_kernels = is_cuda if options.kernels is None else options.kernels
        fuse_local_networks(
            speech,
            kernels=use_kernels,
            fp8=options.fp8_dit,
            batch_invariant=is_cuda and batch_invariance.is_on(),
        )
        compiles = is_cuda and not use_kernels and vllm_config.lora_config is None
        if options.compile_solver is not None:
            compiles = options.compile_solver
        if compiles:
            compile_local_networks(speech)
        self.side_path = SidePath(
            speech,
            StreamDecoder(
                speech.audio_vae,
                options.vae_precision if is_cuda else "fp32",
                kernels=use_kernels if options.vae_kernels is None else options.vae_kernels,
            ),
            paged.config,
            n_slots=self.max_num_reqs,
            dtype=self.dtype,
            device=device,
            graph_timesteps=options.graph_timesteps,
        )
        # While a request re-prefills: its generated embeddings [n, H], and its prompt's positions.
        self.replays: dict[str, torch.Tensor] = {}
        self.n_prompt_of: dict[str, int] = {}

    # Requests.

    def add_request(self, req_index: int, new_req_data: NewRequestData) -> None:
        """Admit a request, or take a preempted one up again with its history."""
        super().add_request(req_index, new_req_data)
        sampling = new_req_data.sampling_params
        if sampling is None or EXTRA_ARGS_KEY not in (sampling.extra_args or {}):
            return  # vLLM's warm-up; the front end lets no such request through
        request_id = new_req_data.req_id
        self.side_path.add(request_id, req_index, step_params(sampling))
        assert new_req_data.prefill_token_ids is not None
        n_generated = len(new_req_data.prefill_token_ids) - new_req_data.prompt_len
        if n_generated:
            self.replays[request_id] = self.side_path.replay(request_id, n_generated)
            self.n_prompt_of[request_id] = new_req_data.prompt_len

    def park_request(self, req_id: str) -> None:
        """The scheduler preempted it."""
        self._end_replay(req_id)
        self.side_path.park(req_id)

    def end_request(self, req_id: str) -> None:
        """The scheduler reports it finished or aborted."""
        self._end_replay(req_id)
        self.side_path.remove(req_id)

    def _end_replay(self, req_id: str) -> None:
        self.replays.pop(req_id, None)
        self.n_prompt_of.pop(req_id, None)

    # ``remove_request`` stays the stock one: the runner calls it for preempted requests too.

    # Inputs.

    def prepare_inputs_embeds(
        self,
        scheduled_encoder_inputs: dict[str, list[int]],
        input_batch: InputBatch,
        req_states: RequestState,
    ) -> torch.Tensor:
        """Embeddings of text and given audio, and over them those of generated patches."""
        next_embed = self.side_path.state.next_embed
        embeds = self.encoder_runner.inputs_embeds
        if not input_batch.has_prefill:
            n = input_batch.num_reqs
            assert n == input_batch.num_tokens
            torch.index_select(next_embed, 0, input_batch.idx_mapping, out=embeds[:n])
            return embeds[: input_batch.num_tokens_after_padding]
        super().prepare_inputs_embeds(scheduled_encoder_inputs, input_batch, req_states)
        rows = decode_rows(input_batch)
        if len(rows):
            places = np.stack(
                [input_batch.query_start_loc_np[rows], input_batch.idx_mapping_np[rows]]
            )
            tokens, slots = async_tensor_h2d(places, device=self.device, dtype=torch.int64)
            embeds.index_copy_(0, tokens, next_embed.index_select(0, slots))
        for request_id, history, tokens in replayed_spans(input_batch, self.n_prompt_of):
            embeds[tokens].copy_(self.replays[request_id][history])
        return embeds[: input_batch.num_tokens_after_padding]

    # Attention.

    def prepare_attn(
        self, input_batch: InputBatch, cudagraph_mode: CUDAGraphMode, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """As the stock state, with the query length that the replayed graph was captured with.

        A graph of mixed steps (``CUDAGraphMode.FULL``) is captured for one query as long as all
        its tokens, and replays pure decode steps too. FlashAttention 3's schedule is made before
        the replay, and vLLM 0.32 makes it for the step's own longest query. For a length of one
        it has another layout, which the captured kernel misreads: decoding requests get garbage.

        Source: vLLM 0.32, ``vllm/v1/worker/gpu/cudagraph_utils.py`` (``prepare_inputs_to_capture``)
        and ``vllm/v1/attention/backends/flash_attn.py``.
        """
        has_mixed_graphs = self.vllm_config.compilation_config.cudagraph_mode == CUDAGraphMode.FULL
        if cudagraph_mode == CUDAGraphMode.FULL and has_mixed_graphs:
            input_batch = with_captured_query_len(input_batch)
        return super().prepare_attn(input_batch, cudagraph_mode, *args, **kwargs)

    # The step.

    def speak(
        self,
        input_batch: InputBatch,
        hidden_states: torch.Tensor,
        adapters: Sequence[int] | None = None,
    ) -> list[StepSamples]:
        """Queue the patches of all requests that sampled a token in this step.

        Args:
            input_batch: the step's batch.
            hidden_states: ``[n_tokens, 2H]`` of the language models.
            adapters: of each request the slot of its LoRA adapter in this step; None where LoRA
                is off.
        """
        live = self.side_path.live
        rows = [i for i in sampling_rows(input_batch) if input_batch.req_ids[i] in live]
        if not rows:
            return []
        requests = []
        for i in rows:
            request_id = input_batch.req_ids[i]
            requests.append(live[request_id])
            live[request_id].adapter = NO_ADAPTER if adapters is None else adapters[i]
            self._end_replay(request_id)
            if not live[request_id].n_steps:
                self._prime(request_id, int(input_batch.prefill_len_np[i]))
        token_rows = input_batch.query_start_loc_np[1:][rows].astype(np.int64) - 1
        return self.side_path.step(rows, requests, token_rows, hidden_states)

    def _prime(self, request_id: str, n_prompt_tokens: int) -> None:
        """Before its first patch, a continuation takes over the end of its prompt audio."""
        for feature in self.encoder_cache.mm_features[request_id]:
            position = feature.mm_position
            ends_prompt = position.offset + position.length == n_prompt_tokens
            if feature.modality != AUDIO_MODALITY or not ends_prompt:
                continue
            # The last prompt position is always computed, never taken from the prefix
            # cache, so the item that covers it is in the encoder cache at this moment.
            config = self.side_path.config
            rows = self.encoder_cache.encoder_outputs[feature.identifier]
            patches = rows[-config.family.n_context_patches :, config.lm.hidden_size :]
            context = rearrange(patches, "n (p d) -> n p d", p=config.patch_size)
            self.side_path.prime(request_id, context)


def with_captured_query_len(batch: InputBatch) -> InputBatch:
    """The batch with the longest query that a graph of mixed steps was captured for: all tokens."""
    if batch.max_query_len is not None:
        return batch
    return dataclasses.replace(batch, max_query_len=batch.num_tokens_after_padding)
