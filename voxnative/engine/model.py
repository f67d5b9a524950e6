"""VoxCPM as a vLLM model: base LM -> FSQ -> residual LM in one paged forward."""

from collections.abc import Iterable
from typing import ClassVar

import torch
from einops import rearrange
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.interfaces import SupportsLoRA, SupportsMultiModal
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.sequence import IntermediateTensors

from voxnative.checkpoint import resolve_checkpoint
from voxnative.engine.hf_config import VoxCPM2HFConfig
from voxnative.engine.lora_manager import SpeechLoRAManager
from voxnative.engine.paged_lm import PagedLM
from voxnative.engine.processor import SpeechDummyInputs, SpeechProcessingInfo, SpeechProcessor
from voxnative.engine.weights import load_checkpoint
from voxnative.nn.heads import ScalarQuantizer, StopHead
from voxnative.nn.lora import NO_ADAPTER
from voxnative.nn.speech_nets import SpeechNets


@MULTIMODAL_REGISTRY.register_processor(
    SpeechProcessor, info=SpeechProcessingInfo, dummy_inputs=SpeechDummyInputs
)
class VoxCPM2ForSpeech(nn.Module, SupportsLoRA, SupportsMultiModal):
    """The paged part of VoxCPM2; ``speech`` holds the networks behind it (the side path).

    The forward pass returns ``[n_tokens, 2 * hidden]``: the base LM's hidden state
    (quantised at audio positions) beside the residual LM's.

    Source: voxcpm/model/voxcpm2.py, ``VoxCPM2Model._inference``, and voxcpm/model/voxcpm.py,
    ``VoxCPMModel._inference``.
    """

    requires_raw_input_tokens = True  # forward needs the ids: they say where audio is
    packed_modules_mapping: ClassVar[dict[str, list[str]]] = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    lora_manager: SpeechLoRAManager | None = None  # set by vLLM where LoRA is enabled

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        hf_config = vllm_config.model_config.hf_config
        assert isinstance(hf_config, VoxCPM2HFConfig)
        self.config = config = hf_config.vox_config()
        self.model_name = vllm_config.model_config.model
        self.revision = vllm_config.model_config.revision
        lm = config.lm
        self.embed_tokens = VocabParallelEmbedding(lm.vocab_size, lm.hidden_size)
        self.embed_scale = lm.embedding_scale
        self.base_lm = PagedLM(lm, vllm_config, 0, "base_lm")
        self.residual_lm = PagedLM(
            config.residual_lm, vllm_config, lm.num_hidden_layers, "residual_lm"
        )
        self.fsq_layer = ScalarQuantizer(lm.hidden_size, config.fsq_latent_dim, config.fsq_scale)
        self.fusion_concat_proj: ReplicatedLinear | None = None
        if config.family.projects_fusion:
            self.fusion_concat_proj = ReplicatedLinear(
                2 * lm.hidden_size, lm.hidden_size, prefix="fusion_concat_proj", return_bias=False
            )
        self.stop = StopHead(lm.hidden_size)
        self.speech = SpeechNets(config)
        self.speech.audio_vae.float()

    @classmethod
    def get_model_state_cls(cls) -> type:
        """State of Model Runner V2 (CUDA).

        Source: vLLM 0.32, ``vllm/v1/worker/gpu/model_states/__init__.py``.
        """
        from voxnative.engine.model_state import SpeechModelState

        return SpeechModelState

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        """Raw text prompts hold no audio placeholder; ids are built by ``voxnative.prompt``."""
        return None

    def get_language_model(self) -> nn.Module:
        return self

    def embed_multimodal(self, **kwargs: object) -> list[torch.Tensor]:
        """Encode reference and prompt waveforms.

        Returns:
            One ``[n_patches, hidden + P * D]`` tensor an item: the LM embedding of each
            patch beside the patch itself, which a continuation needs as its first
            condition. vLLM's encoder cache keeps both under the audio's content hash.
        """
        waveforms = kwargs["waveform"]
        assert isinstance(waveforms, list | torch.Tensor)
        return [self._encode_waveform(waveform) for waveform in waveforms]

    def _encode_waveform(self, waveform: torch.Tensor) -> torch.Tensor:
        config, dtype = self.config, self.speech.enc_to_lm_proj.weight.dtype
        frames = self.speech.audio_vae.encode(waveform.float().reshape(1, -1))  # [1, n * P, D]
        patches = rearrange(frames, "1 (n p) d -> n p d", p=config.patch_size).to(dtype)
        return torch.cat([self.speech.embed_patches(patches), patches.flatten(1)], dim=-1)

    def embed_input_ids(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: list[torch.Tensor] | None = None,
        *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``text_mask * embed(id) + audio_mask * patch embedding``, ``[n_tokens, hidden]``.

        Generated patches (id "continue") get a zero here: the runner writes theirs.
        """
        config = self.config
        is_text = (input_ids < config.audio_patch_id).unsqueeze(-1)
        text = self.embed_tokens(input_ids.clamp(max=config.audio_patch_id - 1)) * self.embed_scale
        embeds = torch.where(is_text, text, torch.zeros_like(text))
        if multimodal_embeddings:
            assert is_multimodal is not None
            # The mask lies on the host: its indices travel without the device being waited for.
            index = is_multimodal.nonzero().squeeze(1)
            if embeds.is_cuda:
                index = index.pin_memory().to(embeds.device, non_blocking=True)
            index = index.to(embeds.device)
            rows = self._patch_embeds(torch.cat(list(multimodal_embeddings)), index)
            embeds.index_copy_(0, index, rows.to(embeds.dtype))
        return embeds

    def _patch_embeds(self, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Embeddings of given patches, ``[n, hidden]``, each by its request's adapter.

        The encoder cache holds them as the base model makes them, so that a recording is
        encoded once for all adapters; those of an adapter that changes the projection are made
        here, from the patches beside them.
        """
        config, manager = self.config, self.lora_manager
        cached = rows[:, : config.lm.hidden_size]
        if manager is None or not manager.adapts("enc_to_lm_proj"):
            return cached
        patches = rearrange(
            rows[:, config.lm.hidden_size :], "n (p d) -> n p d", p=config.patch_size
        )
        slots = manager.token_slots()[index]  # [n]
        with self.speech.adapter_rows.using(slots):
            adapted = self.speech.embed_patches(patches)
        return torch.where((slots == NO_ADAPTER).unsqueeze(-1), cached, adapted)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        """Run both language models over a flat batch.

        Args:
            input_ids: ``[n_tokens]``; ids from ``audio_patch_id`` on mark audio positions.
            positions: ``[n_tokens]`` positions inside each request.
            intermediate_tensors: unused (pipeline parallelism is refused).
            inputs_embeds: ``[n_tokens, hidden]``.
        """
        if inputs_embeds is None:
            inputs_embeds = self.embed_input_ids(input_ids)
        # A value that is not finite would stay in the KV blocks and reach the next request
        # that gets them (the attention multiplies masked slots by zero).
        inputs_embeds = torch.nan_to_num(inputs_embeds)
        is_audio = (input_ids >= self.config.audio_patch_id).unsqueeze(-1)
        hidden = self.base_lm(inputs_embeds, positions)
        hidden = torch.where(is_audio, self.fsq_layer(hidden), hidden)
        patch_embeds = torch.where(is_audio, inputs_embeds, torch.zeros_like(inputs_embeds))
        fused = self._fuse(hidden, patch_embeds)
        residual = self.residual_lm(fused, positions)
        return torch.cat([hidden, residual], dim=-1)

    def _fuse(self, hidden: torch.Tensor, patch_embeds: torch.Tensor) -> torch.Tensor:
        """The residual LM's input: both projected side by side, or their sum."""
        if self.fusion_concat_proj is None:
            return hidden + patch_embeds
        return self.fusion_concat_proj(torch.cat([hidden, patch_embeds], dim=-1))

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Stop head as logits over the engine's ids: "continue" and "stop", the rest -inf.

        Args:
            hidden_states: ``[n, 2 * hidden]`` rows of :meth:`forward`.
        """
        config = self.config
        logits = self.stop(hidden_states[:, : config.lm.hidden_size]).float()  # [n, 2]
        out = logits.new_full((len(logits), config.engine_vocab_size), float("-inf"))
        out[:, config.continue_id] = logits[:, 0]
        out[:, config.stop_id] = logits[:, 1]
        return out

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the checkpoint strictly; every name and shape of its files is checked.

        The files are found by ``voxnative.checkpoint`` (the AudioVAE lies in a second
        file, of another format even), so vLLM's lazy ``weights`` iterator is not used.

        Raises:
            CheckpointError: missing, unexpected or mis-shaped tensors, named with the file.
        """
        directory = resolve_checkpoint(self.model_name, self.revision)
        return load_checkpoint(self, self.config, directory)


class VoxCPMForSpeech(VoxCPM2ForSpeech):
    """VoxCPM-0.5B and VoxCPM1.5 under a name of their own; ``Family`` holds what differs."""
