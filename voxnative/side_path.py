"""The step behind the language models, for many requests on one device and without host syncs.

    sampled rows [B, 2H] ----------> gathered into a static buffer
    noise, cfg, slots (host) ------> one asynchronous copy (adapters' slots too, where LoRA is on)
    patches graph, main stream       mu -> CFM over the local DiT -> patch   [B, P, D]
                                     patch -> local encoder -> next input    [B, H]
    samples graph, decoder stream    patch -> AudioVAE with carried tails    [B, n_samples]
                                     (while the next step's language models run)
    copy stream                      samples and embeddings -> pinned memory of this step

The mathematics is that of ``decode_step``, which runs the same networks on a CPU. What a step
needs of a request's past lies in ``slot_state``; its noise is drawn on the host, one step at a
time and from the request's own generator, so that it takes no device memory and depends on
nothing but the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from voxnative.batch_buckets import batch_buckets
from voxnative.config import VoxConfig
from voxnative.lanes import Lanes
from voxnative.live_request import LiveRequest, StepSamples
from voxnative.nn.flow_plan import FlowPlan, solve_planned
from voxnative.nn.lora import NO_ADAPTER
from voxnative.nn.speech_nets import SpeechNets
from voxnative.nn.vae_stream import StreamDecoder
from voxnative.request_state import StepParams
from voxnative.side_path_graph import BucketedCalls
from voxnative.slot_state import SlotState


class SidePath:
    """State and step of all running requests.

    Args:
        nets: the networks behind the language models, on their device.
        decoder: the AudioVAE's streaming decoder in the wanted precision.
        config: the checkpoint's configuration.
        n_slots: requests that run at once at most.
        dtype: of the language models.
        device: where everything lives.
        graph_timesteps: numbers of timesteps whose step is captured as a graph.
    """

    def __init__(
        self,
        nets: SpeechNets,
        decoder: StreamDecoder,
        config: VoxConfig,
        n_slots: int,
        dtype: torch.dtype,
        device: torch.device,
        graph_timesteps: tuple[int, ...] = (),
    ) -> None:
        self.nets, self.decoder, self.config = nets, decoder, config
        self.dtype, self.device = dtype, device
        self.lanes = Lanes(device)
        self.state = SlotState(config, nets.audio_vae, n_slots, dtype, decoder.dtype, device)
        self.live: dict[str, LiveRequest] = {}
        self.buckets = batch_buckets(n_slots)
        P, D, H = config.patch_size, config.feat_dim, config.lm.hidden_size
        self.n_samples = config.patch_samples_out
        self.embed_words = -(-H * dtype.itemsize // 4)  # fp32 words that hold an embedding

        def new(*shape: int, of: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(n_slots, *shape, dtype=of, device=device)

        # Static buffers, each [n_slots, ...]: inputs and results of the patches graph ...
        self.slots = new(of=torch.int64)
        self.hidden = new(2 * H, of=dtype)
        self.scalars = new(2 + D * P)  # cfg, temperature, noise [D, P]
        takes_adapters = nets.adapter_rows.column_slots is not None
        self.adapters = new(of=torch.int64) if takes_adapters else None  # slots of LoRA adapters
        self.patches, self.embeds = new(P, D), new(H, of=dtype)
        # ... and of the samples graph, copied so that the next step need not wait for it.
        self.decoder_slots, self.decoder_patches = new(of=torch.int64), new(P, D)
        self.packed = new(self.n_samples + self.embed_words)
        self._decoder_has_read: torch.cuda.Event | None = None
        self._decoder_done: torch.cuda.Event | None = None
        self._packed_copied: torch.cuda.Event | None = None
        self._plans: dict[int, FlowPlan] = {}
        self._patch_calls = {n: self._patch_call(n) for n in graph_timesteps}
        self._sample_call = BucketedCalls(self._make_samples, self.buckets, "samples")

    @property
    def slot_of(self) -> dict[str, int | None]:
        """Live requests and their slots."""
        return {request_id: request.slot for request_id, request in self.live.items()}

    # Requests come and go; everything here is queued, nothing waits.

    def add(self, request_id: str, slot: int, params: StepParams) -> None:
        """Give a new request the slot, or a preempted one its row back in this slot."""
        request = self.live.get(request_id)
        if request is not None:
            assert request.parked is not None, f"{request_id} runs already"
            self.lanes.wait(self._decoder_done)
            self.state.restore(slot, request.parked)
            request.slot, request.parked = slot, None
            return
        generator = torch.Generator().manual_seed(params.seed)
        self.live[request_id] = LiveRequest(params, slot, generator)
        self.state.clear(slot)
        # The slot's tails may just be copied away on this stream (`park`).
        before = self.lanes.mark()
        with self.lanes.on(self.lanes.decoder):
            self.lanes.wait(before)
            self.state.clear_tails(slot)

    def park(self, request_id: str) -> None:
        """A request was preempted: keep its row by its id, its slot goes to another."""
        request = self.live.get(request_id)
        if request is not None and request.slot is not None:
            self.lanes.wait(self._decoder_done)
            request.parked, request.slot = self.state.park(request.slot), None

    def remove(self, request_id: str) -> None:
        """A request finished or was aborted; unknown ids are ignored."""
        self.live.pop(request_id, None)

    def replay(self, request_id: str, n_rows: int) -> Tensor:
        """The first ``n_rows`` embeddings of a request [n_rows, H] on the device, in order."""
        history = self.live[request_id].history
        assert len(history) >= n_rows, (request_id, len(history), n_rows)
        host = self.lanes.empty_host(n_rows, self.config.lm.hidden_size, dtype=self.dtype)
        torch.stack(history[:n_rows], out=host)
        return host.to(self.device, non_blocking=True)

    def prime(self, request_id: str, context: Tensor) -> None:
        """Start a request behind the end of its prompt audio instead of behind silence.

        Args:
            request_id: a request that has made no step yet.
            context: [n, P, D] last patches of the prompt, n >= 1, on the device.
        """
        request = self.live[request_id]
        assert request.n_steps == 0, request_id
        assert request.slot is not None, request_id
        context = context.float()
        self.state.previous_patch[request.slot].copy_(context[-1])
        made = self.lanes.mark()
        with self.lanes.on(self.lanes.decoder):
            self.lanes.wait(made)
            if self.lanes.decoder is not None:
                context.record_stream(self.lanes.decoder)
            index = torch.full((1,), request.slot, device=self.device)
            tails = self.state.gather_tails(index)
            _, tails = self.decoder.decode(context.flatten(0, 1).unsqueeze(0), tails)
            self.state.scatter_tails(index, tails)

    # The step.

    def step(
        self, rows: list[int], requests: list[LiveRequest], token_rows: np.ndarray, hidden: Tensor
    ) -> list[StepSamples]:
        """Queue one patch for each request; one part a number of timesteps.

        Args:
            rows: positions of the requests in the batch.
            requests: the requests, each with a slot.
            token_rows: [len(rows)] int64, the row of ``hidden`` that each samples from.
            hidden: [n_tokens, 2H] what the language models made.
        """
        groups: dict[int, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(request.params.timesteps, []).append(i)
        return [
            self._step_group(
                n_timesteps,
                [rows[i] for i in members],
                [requests[i] for i in members],
                token_rows[members],
                hidden,
            )
            for n_timesteps, members in groups.items()
        ]

    def _step_group(
        self,
        n_timesteps: int,
        rows: list[int],
        requests: list[LiveRequest],
        token_rows: np.ndarray,
        hidden: Tensor,
    ) -> StepSamples:
        call = self._patch_calls.get(n_timesteps)
        if call is None:
            call = self._patch_calls[n_timesteps] = self._patch_call(n_timesteps)
        self.lanes.wait(self._decoder_has_read)
        self._load(requests, token_rows, hidden)
        bucket = call.run(len(rows))
        made = self.lanes.mark()
        with self.lanes.on(self.lanes.decoder):
            self.lanes.wait(made)
            self.lanes.wait(self._packed_copied)
            self.decoder_patches[:bucket].copy_(self.patches[:bucket])
            self.decoder_slots[:bucket].copy_(self.slots[:bucket])
            self._packed_embeds(bucket).copy_(self.embeds[:bucket])
            self._decoder_has_read = self.lanes.mark()
            self._sample_call.run(len(rows))
            self._decoder_done = self.lanes.mark()
        host = self.lanes.empty_host(len(rows), self.packed.shape[1], dtype=torch.float32)
        with self.lanes.on(self.lanes.copy):
            self.lanes.wait(self._decoder_done)
            host.copy_(self.packed[: len(rows)], non_blocking=True)
            self._packed_copied = self.lanes.mark(blocking=True)
        return StepSamples(rows, requests, host, self._packed_copied)

    def _load(self, requests: list[LiveRequest], token_rows: np.ndarray, hidden: Tensor) -> None:
        """Fill the static inputs; rows behind the real ones get the scratch slot."""
        B = len(requests)
        n_slots = self.slots.shape[0]
        integers = self.lanes.empty_host(3, n_slots, dtype=torch.int64)
        scalars = self.lanes.empty_host(B, self.scalars.shape[1], dtype=torch.float32)
        places = integers.numpy()
        places[0, :], places[2, :] = self.state.scratch, NO_ADAPTER
        D, P = self.config.feat_dim, self.config.patch_size
        for i, request in enumerate(requests):
            params = request.params
            places[0, i], places[2, i] = request.slot, request.adapter
            scalars[i, 0], scalars[i, 1] = params.cfg, params.temperature
            noise = scalars[i, 2:].view(D, P)
            torch.randn((D, P), generator=request.generator, out=noise)
            request.n_steps += 1
        places[1, :B] = token_rows
        self.scalars[:B].copy_(scalars, non_blocking=True)
        on_device = integers.to(self.device, non_blocking=True)
        self.slots.copy_(on_device[0])
        if self.adapters is not None:
            self.adapters.copy_(on_device[2])
        torch.index_select(hidden, 0, on_device[1, :B], out=self.hidden[:B])

    def _patch_call(self, n_timesteps: int) -> BucketedCalls:
        plan = self._plans.get(n_timesteps)
        if plan is None:
            estimator = self.nets.feat_decoder.estimator
            mean_mode = self.config.dit_mean_mode
            plan = FlowPlan(estimator, n_timesteps, self.device, mean_mode=mean_mode)
            self._plans[n_timesteps] = plan

        def make_patches(bucket: int) -> None:
            self._make_patches(plan, bucket)

        return BucketedCalls(make_patches, self.buckets, f"patches, {n_timesteps} timesteps")

    def _make_patches(self, plan: FlowPlan, bucket: int) -> None:
        """Static inputs -> patches, embeddings and state of the first ``bucket`` rows."""
        P, D = self.config.patch_size, self.config.feat_dim
        slots = self.slots[:bucket]
        hidden, residual = self.hidden[:bucket].chunk(2, dim=-1)
        cfg, temperature, noise = self.scalars[:bucket].split((1, 1, D * P), dim=1)
        with self._adapters_of(bucket):
            patches = solve_planned(
                self.nets.feat_decoder.estimator,
                plan,
                noise.reshape(bucket, D, P).mT * temperature.unsqueeze(1),
                mu=self.nets.dit_condition(hidden, residual),
                cond=self.state.previous_patch.index_select(0, slots),
                cfg=cfg.squeeze(1),
            )
            embeds = self.nets.embed_patches(patches.to(self.dtype))
        self.patches[:bucket].copy_(patches)
        self.embeds[:bucket].copy_(embeds)
        self.state.previous_patch.index_copy_(0, slots, patches)
        self.state.next_embed.index_copy_(0, slots, embeds)

    def _adapters_of(self, bucket: int) -> AbstractContextManager[None]:
        """Inside, layers that take LoRA adapters add what those of the first rows make."""
        if self.adapters is None:
            return nullcontext()
        return self.nets.adapter_rows.using(self.adapters[:bucket], masked=True)

    def _make_samples(self, bucket: int) -> None:
        """Copied patches -> samples and tails of the first ``bucket`` rows."""
        slots = self.decoder_slots[:bucket]
        tails = self.state.gather_tails(slots)
        waves, tails = self.decoder.decode(self.decoder_patches[:bucket], tails)
        self.state.scatter_tails(slots, tails)
        self.packed[:bucket, : self.n_samples].copy_(waves)

    def _packed_embeds(self, n_rows: int) -> Tensor:
        words = self.packed[:n_rows, self.n_samples :]
        return words.view(self.dtype)[:, : self.config.lm.hidden_size]

    def deliver(self, samples: StepSamples) -> list[Tensor]:
        """Wait for a step's copy, append its embeddings to the histories, return its samples.

        Called from the thread that waits for results, once a step and in order.

        Returns:
            One [n_samples] fp32 a row; views of memory that belongs to this step alone.
        """
        if samples.arrived is not None:
            samples.arrived.synchronize()
        words = samples.packed[:, self.n_samples :].clone()  # the samples' memory may go sooner
        embeds = words.view(self.dtype)[:, : self.config.lm.hidden_size]
        for request, embed in zip(samples.requests, embeds, strict=True):
            request.history.append(embed)
        return list(samples.packed[:, : self.n_samples].unbind(0))

    # Graphs.

    @property
    def n_graphs(self) -> int:
        """Graphs that `capture` makes."""
        return len(self.buckets) * (len(self._patch_calls) + 1)

    def capture(self, on_bucket: Callable[[str, int], None]) -> int:
        """Capture all graphs on a CUDA device.

        Args:
            on_bucket: called with a name and a bucket after each capture.

        Returns:
            Device memory the graphs took, in bytes.
        """
        self.slots.fill_(self.state.scratch)
        self.decoder_slots.fill_(self.state.scratch)
        calls = [*self._patch_calls.values(), self._sample_call]
        for call in calls:
            call.capture(self.device, lambda bucket, name=call.name: on_bucket(name, bucket))  # type: ignore[misc]
        return sum(call.n_bytes for call in calls)
