"""LoRA of the networks behind the language models: many adapters in one batch.

Each adapted layer keeps the matrices of all adapters in stacks, by slot; slot 0 stays zero and
stands for no adapter. A row of the batch takes the matrices of its own slot, in one of two ways:

- gathered: the matrices of each row's slot are copied together. What no adapter changes costs
  nothing, which the host must know.
- masked: the low ranks of all slots are made at once, and a row's are zeroed but for its own
  slot's. Nothing depends on what the slots hold, so that a captured graph serves any adapters.

Source: voxcpm/modules/layers/lora.py `LoRALinear`; batching by adapter after "Punica:
Multi-Tenant LoRA Serving" (arXiv 2310.18547).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
        foreign: [B, 1, 1, columns], true for the low-rank columns of other slots than the row's;
            None where the matrices are gathered.
        column_slots: [columns] slot of each low-rank column of a layer; None as long as no
            layer was made to take adapters.
    """

    def __init__(self) -> None:
        self.slots: Tensor | None = None
        self.foreign: Tensor | None = None
        self.column_slots: Tensor | None = None

    @contextmanager
    def using(self, slots: Tensor | None, *, masked: bool = False) -> Iterator[None]:
        """Route the rows of the block by `slots` [B].

        Args:
            slots: None for no adapter at all.
            masked: compute all slots and mask, as a captured graph needs it. A batch may then
                also hold the same rows several times, one copy behind the other.
        """
        before = self.slots, self.foreign
        self.slots, self.foreign = slots, None
        if masked:
            assert slots is not None
            assert self.column_slots is not None
            self.foreign = slots.view(-1, 1, 1, 1) != self.column_slots
        try:
            yield
        finally:
            self.slots, self.foreign = before

    @contextmanager
    def pairs_of(self, members: Tensor) -> Iterator[None]:
        """Route a doubled batch (conditional rows, then unconditional) of the rows `members`."""
        slots = None if self.slots is None else self.slots[members].repeat(2)
        with self.using(slots):
            yield


class LowRank(nn.Module):
    """The matrices of all adapters of one layer.

    Args:
        base: the layer.
        rows: the routing of the batch.
        n_adapters: adapters at once; the stacks have one slot more.
        max_rank: largest rank; smaller ones are padded with zeros.
    """

    def __init__(self, base: nn.Linear, rows: AdapterRows, n_adapters: int, max_rank: int) -> None:
        super().__init__()
        self.rows = rows
        n_out, n_in = base.weight.shape
        # Slots that hold an adapter of this layer; known on the host, so that a layer that no
        # adapter names costs nothing where matrices are gathered.
        self.taken: set[int] = set()
        stack_a = base.weight.new_zeros(n_adapters + 1, max_rank, n_in)
        stack_b = base.weight.new_zeros(n_adapters + 1, max_rank, n_out)
        self.register_buffer("stack_a", stack_a, persistent=False)
        self.register_buffer("stack_b", stack_b, persistent=False)
        self.stack_a: Tensor
        self.stack_b: Tensor

    def add(self, y: Tensor, x: Tensor) -> Tensor:
        """y [B, ..., out] and each row's product of x [B, ..., in]; y may be changed in place."""
        slots, foreign = self.rows.slots, self.rows.foreign
        if slots is None:
            return y
        if foreign is not None:
            flat_y, flat_x = y.view(-1, y.shape[-1]), x.reshape(-1, x.shape[-1])
            n_tokens = x.shape[1:-1].numel()
            add_masked(flat_y, flat_x, n_tokens, foreign, self.stack_a[None], [(self.stack_b, 0)])
            return y
        if not self.taken:
            return y
        B = x.shape[0]
        assert slots.shape[0] == B, (slots.shape, x.shape)
        low = torch.bmm(x.reshape(B, -1, x.shape[-1]), self.stack_a[slots].mT)  # [B, T, r]
        return y + torch.bmm(low, self.stack_b[slots]).view_as(y)

    def write(self, slot: int, pair: tuple[Tensor, Tensor] | None) -> None:
        """Fill a slot with A [r, in] and B [out, r], or empty it; queued on the current stream.

        Batches queued before it on that stream still see what the slot held.
        """
        assert slot != NO_ADAPTER
        if slot in self.taken:
            self.stack_a[slot].zero_()
            self.stack_b[slot].zero_()
            self.taken.discard(slot)
        if pair is not None:
            a, b = pair
            self.stack_a[slot, : a.shape[0]].copy_(a, non_blocking=True)
            self.stack_b[slot, : b.shape[1]].copy_(b.mT, non_blocking=True)
            self.taken.add(slot)


def add_masked(
    y: Tensor,
    x: Tensor,
    n_tokens: int,
    foreign: Tensor,
    stack_a: Tensor,
    parts: Sequence[tuple[Tensor, int]],
    *,
    alpha: float = 1.0,
) -> None:
    """Add `alpha * B_slot A_slot x` to y in place, for n layers of one input.

    Args:
        y: [k * B * T, out] outputs of the layers side by side.
        x: [k * B * T, in]; k copies of the batch.
        n_tokens: T.
        foreign: [B, 1, 1, columns], see `AdapterRows`.
        stack_a: [n, slots, r, in].
        parts: of each layer its stack B [slots, r, width] and its first column in y.
        alpha: a factor of the whole.
    """
    n, n_slots, rank, n_in = stack_a.shape
    B, columns = foreign.shape[0], n_slots * rank
    low = F.linear(x, stack_a.view(n * columns, n_in))  # [k * B * T, n * columns]
    low.view(-1, B, n_tokens, n, columns).masked_fill_(foreign, 0.0)
    for part, (stack_b, begin) in zip(low.split(columns, dim=1), parts, strict=True):
        matrix = stack_b.view(columns, -1)
        y[:, begin : begin + matrix.shape[1]].addmm_(part, matrix, alpha=alpha)


class AdaptedLinear(nn.Module):
    """A linear layer whose rows may each have an adapter: `W x + b + B_slot A_slot x`.

    Args:
        base: the layer; its parameters are taken over under their names.
        low_rank: the adapters' matrices.
    """

    def __init__(self, base: nn.Linear, low_rank: LowRank) -> None:
        super().__init__()
        self.weight, self.bias = base.weight, base.bias
        self.low_rank = low_rank

    def forward(self, x: Tensor) -> Tensor:
        """[B, ..., in] -> [B, ..., out]; B is the number of routed rows where there are any."""
        return self.low_rank.add(F.linear(x, self.weight, self.bias), x)


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
        self.layers: dict[str, LowRank] = {}
        linears = {
            path: module
            for path, module in root.named_modules()
            if isinstance(module, nn.Linear) and is_adapted(path)
        }
        for path, module in linears.items():
            parent, _, name = path.rpartition(".")
            low_rank = LowRank(module, rows, n_adapters, max_rank)
            setattr(root.get_submodule(parent), name, AdaptedLinear(module, low_rank))
            self.layers[path] = low_rank
            rows.column_slots = torch.arange(
                n_adapters + 1, device=module.weight.device
            ).repeat_interleave(max_rank)

    def write(self, slot: int, pairs: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Fill a slot of every layer; layers that `pairs` does not name are emptied."""
        for path, layer in self.layers.items():
            layer.write(slot, pairs.get(path))


def takes_adapters(module: nn.Module) -> bool:
    """Whether any layer below a module was made to take adapters."""
    return any(isinstance(child, AdaptedLinear) for child in module.modules())
