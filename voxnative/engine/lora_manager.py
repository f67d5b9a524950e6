"""Adapters in the worker: upstream's files -> vLLM's LoRA layers and our adapted layers.

vLLM decides which adapters are resident, and which slot each one of a batch has. The language
models' part goes through its layers; at the same moments the slot of the networks behind them is
filled (``voxnative.nn.lora``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.lora.layers import LoRAMapping
from vllm.lora.lora_model import LoRAModel
from vllm.lora.lora_weights import LoRALayerWeights
from vllm.lora.model_manager import DEFAULT_LANGUAGE_WRAPPER_KEY, LRUCacheLoRAModelManager
from vllm.lora.request import LoRARequest
from vllm.lora.utils import is_in_target_modules
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
from vllm.platforms import current_platform
from vllm.utils.torch_utils import async_tensor_h2d

from voxnative.engine.punica_cpu import GroupedPunicaCPU
from voxnative.engine.punica_gpu import tell_mapping, use_host_metadata
from voxnative.lora_file import DIT_PREFIX, PROJECTIONS, Pair, read_adapter
from voxnative.nn.lora import NO_ADAPTER, NetAdapters


class SpeechLoRAModel(LoRAModel):
    """An adapter in the worker's memory.

    Args:
        lora_id: vLLM's number of it.
        rank: of its matrices.
        layers: its part in the language models.
        net_pairs: its part in the networks behind them.
    """

    def __init__(
        self,
        lora_id: int,
        rank: int,
        layers: dict[str, LoRALayerWeights],
        net_pairs: Mapping[str, Pair],
    ) -> None:
        super().__init__(lora_id, rank, layers)
        self.net_pairs = net_pairs


class SpeechLoRAManager(LRUCacheLoRAModelManager):
    """Stock manager of slots, which also fills those of the networks behind the LMs.

    Source: vLLM 0.32, ``vllm/lora/model_manager.py``.
    """

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        targets, packed = self.lora_config.target_modules, self.packed_modules_mapping
        self.net_adapters = NetAdapters(
            model.speech,
            model.speech.adapter_rows,
            lambda path: (
                (path.startswith(DIT_PREFIX) or path in PROJECTIONS)
                and is_in_target_modules(path, targets, packed)
            ),
            n_adapters=self.lora_slots,
            max_rank=self.lora_config.max_lora_rank,
        )
        self.token_ids: tuple[int, ...] = ()  # adapter of each token of the step under way, 0: none

    def _init_punica_wrapper(self, max_num_batched_tokens: int, vllm_config: VllmConfig) -> None:
        super()._init_punica_wrapper(max_num_batched_tokens, vllm_config)
        wrappers = self.punica_wrapper_mapping
        if current_platform.is_cpu():
            wrappers[DEFAULT_LANGUAGE_WRAPPER_KEY] = GroupedPunicaCPU(
                max_num_batched_tokens, max_batches=self.max_num_seqs, device=self.device
            )
        elif current_platform.is_cuda():
            use_host_metadata(wrappers[DEFAULT_LANGUAGE_WRAPPER_KEY])

    def _match_target_modules(self, module_name: str) -> bool:
        # The networks behind the LMs have layers of the same names, which are not vLLM's.
        return not module_name.startswith("speech.") and super()._match_target_modules(module_name)

    def _create_merged_loras_inplace(self, lora_model: LoRAModel) -> None:
        if lora_model.loras:  # an adapter may leave the language models as they are
            super()._create_merged_loras_inplace(lora_model)

    def _deactivate_adapter(self, lora_id: int) -> None:
        if lora_id in self.lora_index_to_id:
            self.net_adapters.write(self.net_slot(lora_id), {})
        super()._deactivate_adapter(lora_id)

    def activate_adapter(self, lora_id: int) -> bool:
        """Give an adapter a slot, if it has none; True if it had none."""
        is_new = super().activate_adapter(lora_id)
        if is_new:
            adapter = self._registered_adapters[lora_id]
            pairs = adapter.net_pairs if isinstance(adapter, SpeechLoRAModel) else {}
            self.net_adapters.write(self.net_slot(lora_id), pairs)
        return is_new

    def adapts(self, path: str) -> bool:
        """Whether any active adapter changes this layer of the networks behind the LMs."""
        layer = self.net_adapters.layers.get(path)
        return layer is not None and bool(layer.taken)

    def net_slot(self, lora_id: int) -> int:
        """Slot of an active adapter in the adapted layers; ``NO_ADAPTER`` for id 0."""
        return NO_ADAPTER if lora_id == 0 else self.lora_index_to_id.index(lora_id) + 1

    def _set_adapter_mapping(self, mapping: LoRAMapping) -> None:
        if current_platform.is_cuda():
            wrapper = self.punica_wrapper_mapping[DEFAULT_LANGUAGE_WRAPPER_KEY]
            tell_mapping(wrapper, mapping, self.lora_index_to_id)
        super()._set_adapter_mapping(mapping)
        self.token_ids = mapping.index_mapping

    def token_slots(self) -> torch.Tensor:
        """Slots in the adapted layers of the tokens of the step under way, ``[n_tokens]``."""
        slot_of = {lora_id: self.net_slot(lora_id) for lora_id in set(self.token_ids)}
        slots = [slot_of[lora_id] for lora_id in self.token_ids]
        return async_tensor_h2d(slots, device=self.device, dtype=torch.int64)


class SpeechWorkerLoRAManager(LRUCacheWorkerLoRAManager):
    """Stock manager of resident adapters, for upstream's files instead of PEFT's.

    Source: vLLM 0.32, ``vllm/lora/worker_manager.py``.
    """

    _manager_cls = SpeechLoRAManager
    _adapter_manager: SpeechLoRAManager

    def _load_adapter(self, lora_request: LoRARequest) -> SpeechLoRAModel:
        """Read an adapter's directory.

        Raises:
            CheckpointError: what does not fit, by name.
            ValueError: it names a module that ``lora_target_modules`` leaves out.
        """
        model, limits = self._adapter_manager.model, self.lora_config
        adapter = read_adapter(lora_request.lora_path, model.config, limits.max_lora_rank)
        self._check_targets(adapter.pairs)
        in_nets = self._adapter_manager.net_adapters.layers.keys()
        layers, net_pairs = {}, {}
        for path, pair in adapter.pairs.items():
            a, b = (matrix.to(limits.lora_dtype) for matrix in pair)
            if path in in_nets:
                net_pairs[path] = ready_to_copy(a, b, self.device)
                continue
            # As alpha is given the rank: alpha / rank is in B already.
            layers[path] = LoRALayerWeights(path, adapter.rank, adapter.rank, a, b)
        return SpeechLoRAModel(lora_request.lora_int_id, adapter.rank, layers, net_pairs)

    def _check_targets(self, pairs: Mapping[str, Pair]) -> None:
        targets = self.lora_config.target_modules
        packed = self._adapter_manager.packed_modules_mapping
        left_out = [path for path in pairs if not is_in_target_modules(path, targets, packed)]
        if left_out:
            raise ValueError(
                f"the adapter changes {', '.join(left_out[:5])} ({len(left_out)} modules), which "
                f"lora_target_modules leaves out; valid: {', '.join(targets or ())}"
            )


def ready_to_copy(a: torch.Tensor, b: torch.Tensor, device: torch.device) -> Pair:
    """A [r, in] and B [out, r], laid out as in the stacks and pinned: copies wait for nothing."""
    b = b.mT.contiguous()
    if device.type == "cuda":
        a, b = a.pin_memory(), b.pin_memory()
    return a, b.mT


class SpeechLoRARunner:
    """Mixed into the model runners of all platforms, in front of vLLM's."""

    lora_manager: SpeechWorkerLoRAManager

    def load_lora_model(
        self, model: nn.Module, vllm_config: VllmConfig, device: torch.device
    ) -> nn.Module:
        """Wrap a model's layers; called where the engine was started with ``enable_lora``.

        Source: vLLM 0.32, ``vllm/v1/worker/lora_model_runner_mixin.py``.
        """
        self.lora_manager = SpeechWorkerLoRAManager(vllm_config, device, {})
        return self.lora_manager.create_lora_manager(model, vllm_config)

    def net_slot(self, request: LoRARequest | None) -> int:
        """Slot in the adapted layers of a request's adapter in the step under way."""
        if request is None:
            return NO_ADAPTER
        return self.lora_manager._adapter_manager.net_slot(request.lora_int_id)
