"""The one container of per-request state: slot-indexed tensors, keyed by request id."""

from dataclasses import dataclass

import torch

from voxnative.config import VoxConfig
from voxnative.nn.audio_vae import AudioVAE
from voxnative.nn.lora import NO_ADAPTER
from voxnative.nn.vae_stream import init_stream


@dataclass(frozen=True)
class StepParams:
    """What one request asks of every step.

    Attributes:
        seed: seed of the request's own noise generator.
        cfg: weight of classifier-free guidance.
        timesteps: CFM Euler steps, at least 2.
        temperature: standard deviation of the initial noise.
        max_steps: patches this request can produce at most (rows of noise to draw).
    """

    seed: int
    cfg: float
    timesteps: int
    temperature: float
    max_steps: int


class RequestStates:
    """State of all live requests; only :meth:`add` and :meth:`remove` create or clear it.

    A request keeps its slot while it is preempted, so the container grows when more
    requests are alive than it was made for.

    Args:
        config: the checkpoint's configuration.
        vae: the AudioVAE whose causal tails are kept here.
        n_slots: requests expected at once.
        max_steps: largest number of steps of one request.
        dtype: dtype of the side path's networks (the VAE's tails stay float32).
        device: where the tensors live.
    """

    def __init__(
        self,
        config: VoxConfig,
        vae: AudioVAE,
        n_slots: int,
        max_steps: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config = config
        self.vae = vae
        self.max_steps = max_steps
        self.dtype = dtype
        self.device = device
        self.slot_of: dict[str, int] = {}
        self.free_slots: list[int] = []
        self.n_slots = 0
        # Each line: shape; written by; read by.
        self.noise = self._new(max_steps)  # [S, max_steps, P, D]; add; CFM
        self.step = torch.zeros(0, dtype=torch.long, device=device)  # [S]; step; CFM noise row
        self.previous_patch = self._new()  # [S, P, D]; step, prime; CFM condition
        self.cfg = torch.zeros(0, dtype=dtype, device=device)  # [S]; add; CFM
        self.vae_tails: list[torch.Tensor] = init_stream(vae, 0, device, torch.float32)
        # ^ one [S, C, pad] a causal convolution; step, prime; VAE
        self.timesteps: list[int] = []  # [S]; add; CFM (rows grouped by it)
        self.adapter: list[int] = []  # [S] slots of LoRA adapters, 0 is none; runner; side path
        self.history: list[list[torch.Tensor]] = []  # [S] lists of [H]; step; LM input, re-prefill
        self._grow(n_slots)

    def __len__(self) -> int:
        return len(self.slot_of)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.slot_of

    def add(self, request_id: str, params: StepParams) -> int:
        """Take a slot for a request and draw its noise, whatever else is in the batch.

        Returns:
            The slot.
        """
        assert request_id not in self.slot_of, request_id
        n_steps = min(params.max_steps, self.max_steps)
        if not self.free_slots:
            self._grow(2 * self.n_slots)
        slot = self.free_slots.pop()
        self.slot_of[request_id] = slot
        generator = torch.Generator().manual_seed(params.seed)
        P, D = self.config.patch_size, self.config.feat_dim
        # [D, P] a step from one generator, as upstream draws it: one large draw would give
        # other numbers where D * P is no multiple of the generator's vector length.
        noise = torch.stack([torch.randn((D, P), generator=generator) for _ in range(n_steps)])
        self.noise[slot, :n_steps] = noise.mT.to(self.noise) * params.temperature
        self.step[slot] = 0
        self.previous_patch[slot] = 0
        self.cfg[slot] = params.cfg
        for tail in self.vae_tails:
            tail[slot] = 0
        self.timesteps[slot] = params.timesteps
        self.adapter[slot] = NO_ADAPTER
        self.history[slot] = []
        return slot

    def remove(self, request_id: str) -> None:
        """Free a finished or aborted request's slot; unknown ids are ignored.

        An id is unknown when the request ended before it was first scheduled.
        """
        slot = self.slot_of.pop(request_id, None)
        if slot is not None:
            self.history[slot] = []
            self.free_slots.append(slot)

    def adapter_rows(self, slots: list[int]) -> torch.Tensor | None:
        """Slots of these requests' LoRA adapters, ``[B]``; None where none has one."""
        adapters = [self.adapter[slot] for slot in slots]
        if set(adapters) == {NO_ADAPTER}:
            return None
        return torch.tensor(adapters, device=self.device)

    def _new(self, *middle: int) -> torch.Tensor:
        shape = (self.n_slots, *middle, self.config.patch_size, self.config.feat_dim)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _grow(self, n_slots: int) -> None:
        n_new = n_slots - self.n_slots

        def grown(tensor: torch.Tensor) -> torch.Tensor:
            return torch.cat([tensor, tensor.new_zeros(n_new, *tensor.shape[1:])])

        self.noise, self.step = grown(self.noise), grown(self.step)
        self.previous_patch, self.cfg = grown(self.previous_patch), grown(self.cfg)
        self.vae_tails = [grown(tail) for tail in self.vae_tails]
        self.timesteps += [0] * n_new
        self.adapter += [NO_ADAPTER] * n_new
        self.history += [[] for _ in range(n_new)]
        self.free_slots += reversed(range(self.n_slots, n_slots))
        self.n_slots = n_slots
