"""vLLM's multimodal input path for reference and prompt audio (front end side).

An item is a mono waveform at the AudioVAE's input rate, already padded to whole
patches; it stands for one placeholder id a patch. ``voxnative.engine.engine_input``
builds ready inputs for our own front ends; the processor below serves vLLM's
(memory profiling, raw prompts with ``multi_modal_data={"audio": [waveform]}``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers.feature_extraction_utils import BatchFeature
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems
from vllm.multimodal.parse import AudioProcessorItems, MultiModalDataItems, MultiModalDataParser
from vllm.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    BaseProcessingInfo,
    ProcessorInputs,
    PromptReplacement,
    PromptUpdate,
)

from voxnative.config import VoxConfig
from voxnative.engine.hf_config import VoxCPM2HFConfig
from voxnative.units import MAX_REFERENCE_S

AUDIO_MODALITY = "audio"
WAVEFORM_KEY = "waveform"


def audio_fields() -> dict[str, MultiModalFieldConfig]:
    """How keyword tensors are split into items: one waveform of its own length an item."""
    return {WAVEFORM_KEY: MultiModalFieldConfig.batched(AUDIO_MODALITY)}


def max_patches_per_item(config: VoxConfig) -> int:
    """Patches of the longest reference or prompt that the front ends accept."""
    n_samples = round(MAX_REFERENCE_S * config.vae.sample_rate_hz)
    return -(-n_samples // config.patch_samples_in)


class SpeechProcessingInfo(BaseProcessingInfo):
    """Limits of the audio inputs."""

    def vox_config(self) -> VoxConfig:
        return self.ctx.get_hf_config(VoxCPM2HFConfig).vox_config()

    def get_data_parser(self) -> MultiModalDataParser:
        return MultiModalDataParser(target_sr=self.vox_config().vae.sample_rate_hz)

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {AUDIO_MODALITY: 2}  # one reference, one prompt

    def get_mm_max_tokens_per_item(
        self, seq_len: int, mm_counts: Mapping[str, int]
    ) -> Mapping[str, int]:
        return {AUDIO_MODALITY: min(seq_len, max_patches_per_item(self.vox_config()))}


class SpeechDummyInputs(BaseDummyInputsBuilder[SpeechProcessingInfo]):
    """The largest input, for memory profiling."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        return ""

    def get_dummy_mm_data(
        self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Mapping[str, Any]
    ) -> dict[str, Any]:
        config = self.info.vox_config()
        n_patches = min(seq_len, max_patches_per_item(config))
        waveform = np.zeros(n_patches * config.patch_samples_in, dtype=np.float32)
        return {AUDIO_MODALITY: [waveform] * mm_counts.get(AUDIO_MODALITY, 0)}


class SpeechProcessor(BaseMultiModalProcessor[SpeechProcessingInfo]):
    """Pads each waveform to whole patches and expands its placeholder id."""

    requires_tokenizer = False  # prompts arrive as ids

    def get_dummy_inputs(
        self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Mapping[str, Any]
    ) -> ProcessorInputs:
        data = self.dummy_inputs.get_dummy_mm_data(seq_len, mm_counts, mm_options)
        n_items = mm_counts.get(AUDIO_MODALITY, 0)
        return ProcessorInputs(
            prompt=[self.info.vox_config().audio_patch_id] * n_items,
            mm_data_items=self.info.parse_mm_data(data, validate=False),
        )

    def _call_hf_processor(
        self, hf_data: Mapping[str, object], hf_kwargs: Mapping[str, object]
    ) -> BatchFeature:
        patch = self.info.vox_config().patch_samples_in
        padded = []
        for waveform in hf_data["audio"]:  # type: ignore[attr-defined]
            samples = torch.as_tensor(np.asarray(waveform, dtype=np.float32))
            padded.append(torch.nn.functional.pad(samples, (0, -len(samples) % patch)))
        return BatchFeature({WAVEFORM_KEY: padded})

    def _get_mm_fields_config(
        self, hf_inputs: BatchFeature, hf_processor_mm_kwargs: Mapping[str, object]
    ) -> Mapping[str, MultiModalFieldConfig]:
        return audio_fields()

    def _get_prompt_updates(
        self,
        mm_items: MultiModalDataItems,
        hf_processor_mm_kwargs: Mapping[str, object],
        out_mm_kwargs: MultiModalKwargsItems,
    ) -> Sequence[PromptUpdate]:
        config = self.info.vox_config()
        items = mm_items.get_items(AUDIO_MODALITY, AudioProcessorItems)

        def placeholders(item: int) -> list[int]:
            n_patches = -(-items.get_audio_length(item) // config.patch_samples_in)
            return [config.audio_patch_id] * n_patches

        return [
            PromptReplacement(
                modality=AUDIO_MODALITY,
                target=[config.audio_patch_id],
                replacement=placeholders,
            )
        ]
