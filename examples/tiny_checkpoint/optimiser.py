"""AdamW that can live inside a CUDA graph, and an exponential moving average of the weights."""

from __future__ import annotations

import torch
from torch import nn


def make_adamw(
    parameters, betas: tuple[float, float], weight_decay: float, device: torch.device
) -> torch.optim.AdamW:
    """AdamW; on CUDA its learning rate is a tensor, so that a graph reads it."""
    if device.type == "cuda":
        rate = torch.zeros((), device=device)
        return torch.optim.AdamW(
            parameters, lr=rate, betas=betas, weight_decay=weight_decay, capturable=True, fused=True
        )
    return torch.optim.AdamW(parameters, lr=0.0, betas=betas, weight_decay=weight_decay)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate in place."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def load_optimiser(optimiser: torch.optim.Optimizer, state: dict) -> None:
    """Load a saved state and keep this optimiser's own learning-rate tensors."""
    rates = [group["lr"] for group in optimiser.param_groups]
    optimiser.load_state_dict(state)
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate


class MovingAverage:
    """Average of a module's parameters: `average += (1 - decay) * (parameter - average)`."""

    def __init__(self, module: nn.Module, decay: float):
        self._names = [name for name, _ in module.named_parameters()]
        self._live = [p.data for p in module.parameters()]
        self._average = [p.data.clone() for p in module.parameters()]
        self._decay = decay

    @torch.no_grad()
    def update(self) -> None:
        """Move towards the live parameters; safe inside a CUDA graph."""
        torch._foreach_lerp_(self._average, self._live, 1 - self._decay)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The averages by parameter name."""
        return dict(zip(self._names, self._average, strict=True))

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Load averages saved by `state_dict`."""
        for name, tensor in zip(self._names, self._average, strict=True):
            tensor.copy_(state[name])
