"""What the step on a GPU keeps of a request, and hands on of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from voxnative.nn.lora import NO_ADAPTER
from voxnative.request_state import StepParams
from voxnative.slot_state import ParkedRow


@dataclass
class LiveRequest:
    """One request from its first scheduling to its end, preempted or not.

    Attributes:
        params: what it asks of every step.
        slot: its row while it runs, None while it is preempted.
        generator: draws its noise, [D, P] a step as the reference does.
        n_steps: steps queued so far.
        history: its embeddings [H] on the host, for a replay after a preemption.
        parked: its row while it is preempted.
        adapter: slot of its LoRA adapter in the step under way; vLLM may move it between steps.
    """

    params: StepParams
    slot: int | None
    generator: torch.Generator
    n_steps: int = 0
    history: list[Tensor] = field(default_factory=list)
    parked: ParkedRow | None = None
    adapter: int = NO_ADAPTER


@dataclass
class StepSamples:
    """What one step made for some rows of the batch, on its way to the host.

    Attributes:
        rows: their positions in the batch.
        requests: their requests.
        packed: [len(rows), n_samples + embedding] fp32 host memory of this step alone.
        arrived: recorded behind the copy.
    """

    rows: list[int]
    requests: list[LiveRequest]
    packed: Tensor
    arrived: torch.cuda.Event | None
