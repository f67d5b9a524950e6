"""Everything after the language models, under the reference's parameter names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voxnative.config import VoxConfig
from voxnative.nn.audio_vae import AudioVAE
from voxnative.nn.local_dit import LocalDiT
from voxnative.nn.local_encoder import LocalEncoder
from voxnative.nn.lora import AdapterRows


class FlowDecoder(nn.Module):
    """Holds the velocity network under the name the checkpoint gives it."""

    def __init__(self, config: VoxConfig) -> None:
        super().__init__()
        self.estimator = LocalDiT(
            config.dit, config.feat_dim, config.patch_size, config.family.n_mu_tokens
        )


class SpeechNets(nn.Module):
    """LocEnc, LocDiT, the projections between them and the LMs, and the AudioVAE in fp32.

    Source: voxcpm/model/voxcpm2.py `VoxCPM2Model`, voxcpm/model/voxcpm.py `VoxCPMModel`.
    """

    def __init__(self, config: VoxConfig) -> None:
        super().__init__()
        hidden = config.lm.hidden_size
        self.sums_condition = config.family.n_mu_tokens == 1
        self.feat_encoder = LocalEncoder(config.encoder, config.feat_dim, config.patch_size)
        self.feat_decoder = FlowDecoder(config)
        self.enc_to_lm_proj = nn.Linear(config.encoder.hidden_size, hidden)
        self.lm_to_dit_proj = nn.Linear(hidden, config.dit.hidden_size)
        self.res_to_dit_proj = nn.Linear(hidden, config.dit.hidden_size)
        # fp32 even where the default dtype is lower: quantisation noise of the VAE is audible.
        self.audio_vae = AudioVAE(config.vae).float()
        self.adapter_rows = AdapterRows()  # read by layers that were made to take LoRA adapters

    def embed_patches(self, patches: Tensor) -> Tensor:
        """Patches [N, P, D] -> base LM input embeddings [N, H]."""
        return self.enc_to_lm_proj(self.feat_encoder(patches))

    def dit_condition(self, hidden: Tensor, residual: Tensor) -> Tensor:
        """The condition of the flow.

        Args:
            hidden: base LM hidden states, quantised at audio positions [B, H].
            residual: residual LM hidden states [B, H].

        Returns:
            mu [B, 2 * H_dit] side by side, or [B, H_dit] summed.
        """
        base, residual = self.lm_to_dit_proj(hidden), self.res_to_dit_proj(residual)
        return base + residual if self.sums_condition else torch.cat((base, residual), dim=-1)
