"""LoRA of the networks behind the language models: many adapters in one batch.

Each adapted layer keeps the matrices of all adapters in stacks, by slot; slot 0 stays zero and
stands for no adapter. A row of the batch takes the matrices of its own slot.

Source: voxcpm/modules/layers/lora.py `LoRALinear`; batching by adapter after "Punica:
Multi-Tenant LoRA Serving" (arXiv 2310.18547).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NO_ADAPTER = 0


class AdapterRows:
    """Which slot each row of the batch under way takes; shared by all layers of the networks.

    The routing is a property of the batch, not of a layer: passed as an argument it would go
    through every signature from the solver down to the projections, also where no adapter is.

    Attributes:
        slots: [B] on the networks' device; None where no row has an adapter.
    """

    def __init__(self) -> None:
        self.slots: Tensor | None = None

    @contextmanager
    def using(self, slots: Tensor | None) -> Iterator[None]:
        """Route the rows of the block by `slots` [B]."""
        before, self.slots = self.slots, slots
        try:
            yield
        finally:
            self.slots = before

    @contextmanager
    def pairs_of(self, members: Tensor) -> Iterator[None]:
        """Route a doubled batch (conditional rows, then unconditional) of the rows `members`."""
        slots = None if self.slots is None else self.slots[members].repeat(2)
        with self.using(slots):
            yield


class AdaptedLinear(nn.Module):
    """A linear layer whose rows may each have an adapter: `W x + b + B_slot A_slot x`.

    Args:
        base: the layer; its parameters are taken over under their names.
        rows: the routing of the batch.
        n_adapters: adapters at once; the stacks have one slot more.
        max_rank: largest rank; smaller ones are padded with zeros.
    """

    def __init__(self, base: nn.Linear, rows: AdapterRows, n_adapters: int, max_rank: int) -> None:
        super().__init__()
        self.weight, self.bias = base.weight, base.bias
        self.rows = rows
        n_out, n_in = base.weight.shape
        # Slots that hold an adapter of this layer; known on the host, so that a layer that no
        # adapter names costs nothing.
        self.taken: set[int] = set()
        stack_a = base.weight.new_zeros(n_adapters + 1, max_rank, n_in)
        stack_b = base.weight.new_zeros(n_adapters + 1, n_out, max_rank)
        self.register_buffer("stack_a", stack_a, persistent=False)
        self.register_buffer("stack_b", stack_b, persistent=False)
        self.stack_a: Tensor
        self.stack_b: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[B, ..., in] -> [B, ..., out]; B is the number of routed rows where there are any."""
        y = F.linear(x, self.weight, self.bias)
        slots = self.rows.slots
        if slots is None or not self.taken:
            return y
        B = x.shape[0]
        assert slots.shape[0] == B, (slots.shape, x.shape)
        low = torch.bmm(x.reshape(B, -1, x.shape[-1]), self.stack_a[slots].mT)  # [B, T, r]
        return y + torch.bmm(low, self.stack_b[slots].mT).view_as(y)

    def write(self, slot: int, pair: tuple[Tensor, Tensor] | None) -> None:
        """Fill a slot with A [r, in] and B [out, r], or empty it."""
        assert slot != NO_ADAPTER
        self.stack_a[slot].zero_()
        self.stack_b[slot].zero_()
        self.taken.discard(slot)
        if pair is not None:
            a, b = pair
            self.stack_a[slot, : a.shape[0]] = a.to(self.stack_a)
            self.stack_b[slot, :, : b.shape[1]] = b.to(self.stack_b)
            self.taken.add(slot)


class NetAdapters:
    """All adapted layers below one module, by path.

    Args:
        root: its linear layers that `is_adapted` accepts are replaced in place.
        rows: the routing of the batch.
        is_adapted: told the path of a linear layer.
        n_adapters: adapters at once.
        max_rank: largest rank.
    """

    def __init__(
        self,
        root: nn.Module,
        rows: AdapterRows,
        is_adapted: Callable[[str], bool],
        n_adapters: int,
        max_rank: int,
    ) -> None:
        self.layers: dict[str, AdaptedLinear] = {}
        linears = {
            path: module
            for path, module in root.named_modules()
            if isinstance(module, nn.Linear) and is_adapted(path)
        }
        for path, module in linears.items():
            parent, _, name = path.rpartition(".")
            layer = AdaptedLinear(module, rows, n_adapters, max_rank)
            setattr(root.get_submodule(parent), name, layer)
            self.layers[path] = layer

    def write(self, slot: int, pairs: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Fill a slot of every layer; layers that `pairs` does not name are emptied."""
        for path, layer in self.layers.items():
            layer.write(slot, pairs.get(path))
