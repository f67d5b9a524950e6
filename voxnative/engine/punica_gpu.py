"""What vLLM's LoRA kernels need to know of a batch, from the host, which knows it already.

The stock class sorts and counts the tokens' slots on the device and waits for the results, behind
everything that is queued there. Batches change with every request that comes or goes, and each
time the host would wait for the solver of the step before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm.lora.layers import LoRAMapping
from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta
from vllm.utils.torch_utils import async_tensor_h2d


class HostKernelMeta(LoRAKernelMeta):
    """The same tensors, in the same place, filled by one asynchronous copy.

    Source: vLLM 0.32, ``vllm/lora/ops/triton_ops/lora_kernel_metadata.py``.
    """

    host_slots: np.ndarray  # [n_tokens] int32 of the batch that is prepared next, -1 is none

    @classmethod
    def over(cls, stock: LoRAKernelMeta) -> HostKernelMeta:
        """Take over the tensors of a stock object."""
        return cls(**{name: getattr(stock, name) for name in LoRAKernelMeta.__dataclass_fields__})

    def prepare_tensors(self, token_lora_mapping: torch.Tensor) -> None:
        """Fill the tensors for ``host_slots``.

        Args:
            token_lora_mapping: the same slots on the device; unused but for its length.
        """
        slots = self.host_slots
        n, room = len(slots), len(self.active_lora_ids)
        assert token_lora_mapping.shape[0] == n, (token_lora_mapping.shape, n)
        found, counts = np.unique(slots, return_counts=True)
        no_lora = found.tolist() == [-1]
        self.no_lora_flag_cpu[0] = no_lora
        n_active = 0 if no_lora else len(found)
        at = bisect_left(self.captured_lora_counts, n_active)
        if n_active and at < len(self.captured_lora_counts):
            n_active = self.captured_lora_counts[at]
        self.num_active_loras_cpu[0] = n_active
        if no_lora:
            return  # no kernel runs
        packed = np.zeros(2 * n + 3 * room + 1, np.int32)
        mapping, order, ids, sizes, starts = np.split(packed, np.cumsum([n, n, room, room]))
        mapping[:], order[:], ids[:] = slots, np.argsort(slots, kind="stable"), -1
        ids[: len(found)], sizes[: len(found)] = found, counts
        starts[1 : 1 + len(found)] = np.cumsum(counts)
        on_device = async_tensor_h2d(packed, device=self.active_lora_ids.device, dtype=torch.int32)
        targets = (
            self.token_lora_mapping[:n],
            self.token_indices_sorted_by_lora_ids[:n],
            self.active_lora_ids,
            self.num_tokens_per_lora,
            self.lora_token_start_loc,
        )
        parts = on_device.split([len(target) for target in targets])
        for target, part in zip(targets, parts, strict=True):
            target.copy_(part)


def use_host_metadata(wrapper: Any) -> None:
    """Let a ``PunicaWrapperGPU`` take its kernels' metadata from the host."""
    wrapper.token_mapping_meta = HostKernelMeta.over(wrapper.token_mapping_meta)
    wrapper.prompt_mapping_meta = HostKernelMeta.over(wrapper.prompt_mapping_meta)


def tell_mapping(wrapper: Any, mapping: LoRAMapping, slot_ids: Sequence[int | None]) -> None:
    """Tell such a wrapper of a batch, before its ``update_metadata``.

    Args:
        wrapper: one that `use_host_metadata` was called for.
        mapping: ids of the adapters, 0 is none.
        slot_ids: id of the adapter in each slot.
    """
    slot_of = {lora_id: slot for slot, lora_id in enumerate(slot_ids) if lora_id is not None}
    slot_of[0] = -1
    for meta, ids in (
        (wrapper.token_mapping_meta, mapping.index_mapping),
        (wrapper.prompt_mapping_meta, mapping.prompt_mapping),
    ):
        meta.host_slots = np.array([slot_of[int(lora_id)] for lora_id in ids], np.int32)
