"""Metadata of vLLM's LoRA kernels, made on the host: what the stock class makes of tensors."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from vllm.lora.layers import LoRAMapping
from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta

from voxnative.engine.punica_gpu import HostKernelMeta, tell_mapping, use_host_metadata

SLOT_IDS = [17, None, 3]
SLOT_OF = {17: 0, 3: 2, 0: -1}


def new_wrapper(captured: list[int]) -> SimpleNamespace:
    """What the functions touch of a wrapper, which itself needs a GPU."""
    return SimpleNamespace(
        token_mapping_meta=LoRAKernelMeta.make(3, 16, "cpu", captured),
        prompt_mapping_meta=LoRAKernelMeta.make(3, 16, "cpu", captured),
    )


@pytest.mark.parametrize("captured", [[], [1, 2, 4]], ids=["one case", "specialised"])
def test_the_same_tensors_as_the_stock_class(captured: list[int]) -> None:
    chance = random.Random(0)
    wrapper, stock = new_wrapper(captured), new_wrapper(captured)
    tensors = vars(wrapper.token_mapping_meta)
    use_host_metadata(wrapper)
    assert isinstance(wrapper.token_mapping_meta, HostKernelMeta)
    assert wrapper.token_mapping_meta.active_lora_ids is tensors["active_lora_ids"]
    batches = [[0] * 4, [17], [3, 3, 0]]
    batches += [chance.choices([0, 3, 17], k=chance.randint(1, 16)) for _ in range(20)]
    for ids in batches:
        mapping = LoRAMapping(tuple(ids), tuple(ids[:1]), is_prefill=True)
        tell_mapping(wrapper, mapping, SLOT_IDS)
        for name, of_batch in (("token_mapping_meta", ids), ("prompt_mapping_meta", ids[:1])):
            slots = torch.tensor([SLOT_OF[i] for i in of_batch])
            got, expected = getattr(wrapper, name), getattr(stock, name)
            got.prepare_tensors(slots)
            expected.prepare_tensors(slots)
            is_lora = bool((slots >= 0).any())
            assert got.no_lora_flag_cpu.tolist() == [not is_lora]
            for specialise in (False, True):
                *tensors_got, active_got = got.meta_args(len(slots), specialise)
                *tensors_expected, active_expected = expected.meta_args(len(slots), specialise)
                assert torch.equal(active_got, active_expected)
                if is_lora:  # else no kernel runs
                    for x, y in zip(tensors_got, tensors_expected, strict=True):
                        assert torch.equal(x, y)
