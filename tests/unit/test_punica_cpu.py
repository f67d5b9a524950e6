"""LoRA of vLLM's layers on a CPU: tokens grouped by adapter, tokens without one untouched."""

from __future__ import annotations

import torch
from vllm.lora.layers import LoRAMapping

from voxnative.engine.punica_cpu import GroupedPunicaCPU

N_IN, RANK, WIDTHS = 6, 3, (8, 4, 4)
SLOT_OF = {11: 0, 22: 1}  # every slot is taken: index -1 would be the last one's


def test_each_token_has_its_own_adapter() -> None:
    torch.manual_seed(0)
    a = tuple(torch.randn(2, 1, RANK, N_IN) for _ in WIDTHS)
    b = tuple(torch.randn(2, 1, width, RANK) for width in WIDTHS)
    ids = [22, 22, 0, 11, 0, 22, 11]
    x, base = torch.randn(len(ids), N_IN), torch.randn(len(ids), sum(WIDTHS))
    punica = GroupedPunicaCPU(16, max_batches=8, device="cpu")
    mapping = LoRAMapping(tuple(ids), tuple(ids), is_prefill=True)
    punica.update_metadata(mapping, [11, 22], 3, 100)
    y = base.clone()
    punica.add_lora_linear(y, x, a, b, 0.5, WIDTHS)

    for token, lora_id in enumerate(ids):
        if lora_id == 0:
            assert torch.equal(y[token], base[token])
            continue
        slot = SLOT_OF[lora_id]
        products = [bi[slot, 0] @ (ai[slot, 0] @ x[token]) for ai, bi in zip(a, b, strict=True)]
        assert (y[token] - base[token] - 0.5 * torch.cat(products)).abs().max() < 1e-5


def test_a_step_without_adapters_adds_nothing() -> None:
    punica = GroupedPunicaCPU(16, max_batches=8, device="cpu")
    punica.update_metadata(LoRAMapping((11, 0), (11, 0), is_prefill=True), [11, 22], 3, 100)
    punica.update_metadata(LoRAMapping((0, 0), (0, 0), is_prefill=True), [11, 22], 3, 100)
    y = torch.zeros(2, 8)
    stacks = torch.ones(2, 1, RANK, N_IN), torch.ones(2, 1, 8, RANK)
    punica.add_lora_linear(y, torch.ones(2, N_IN), stacks[:1], stacks[1:], 1.0, (8,))
    assert torch.count_nonzero(y) == 0
