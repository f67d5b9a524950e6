"""The training step's forward pass: VoxCPM2 teacher-forced over a batch of whole utterances."""

from __future__ import annotations

import torch
from buckets import Batch
from torch import nn
from torch.nn import functional as F

N_PHONEMES = 256


class PhonemeHead(nn.Module):
    """Training-only head: which phonemes the next patch holds, one a latent frame.

    It asks the language model to keep its place in the text, which aligns it within some
    hundred steps; the exported checkpoint has no trace of it.
    """

    def __init__(self, hidden: int, patch_size: int):
        super().__init__()
        self.patch_size = patch_size
        self.linear = nn.Linear(hidden, patch_size * N_PHONEMES)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[B, A, H] -> logits [B, A, P, N_PHONEMES]."""
        return self.linear(hidden).unflatten(-1, (self.patch_size, N_PHONEMES))


def add_dropout(model, rate: float) -> None:
    """Hook dropout onto the attention and MLP outputs of both language models (they have none)."""

    def drop(module, args, output):
        if not module.training:
            return output
        if isinstance(output, tuple):
            return (F.dropout(output[0], rate), *output[1:])
        return F.dropout(output, rate)

    for lm in (model.base_lm, model.residual_lm):
        for layer in lm.layers:
            layer.self_attn.register_forward_hook(drop)
            layer.mlp.register_forward_hook(drop)


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of `values` where `mask` (same shape) is true."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def tts_losses(
    model, head: PhonemeHead, batch: Batch, t, n_positions: int
) -> dict[str, torch.Tensor]:
    """Return the losses `diffusion`, `stop` and `phoneme` of one batch.

    Args:
        model: VoxCPM2Model. Source: `voxcpm/model/voxcpm2.py`, `VoxCPM2Model.forward`, with the
            local encoder run on patches only and the diffusion loss on sampled patches.
        head: the training-only phoneme head.
        batch: B utterances, L positions, A patches.
        t: the `[tts]` settings.
        n_positions: patches whose diffusion loss is computed.
    """
    B, A, P, _ = batch.patches.shape
    device = batch.patches.device
    sigma = t.history_noise * torch.rand(B, 1, 1, 1, device=device)
    history = batch.patches + sigma * torch.randn_like(batch.patches) * batch.valid[..., None, None]

    heard = model.enc_to_lm_proj(model.feat_encoder(history))  # [B, A, H]
    H = heard.shape[-1]
    heard = (
        heard.gather(1, batch.patch_at[..., None].expand(-1, -1, H)) * batch.is_audio[..., None]
    )  # [B, L, H]
    inputs = model.base_lm.embed_tokens(batch.ids) * batch.is_text[..., None] + heard
    hidden, _ = model.base_lm(
        inputs_embeds=F.dropout(inputs, t.dropout, model.training), is_causal=True
    )
    hidden = model.fsq_layer(hidden) * batch.is_audio[..., None] + hidden * batch.is_text[..., None]
    residual, _ = model.residual_lm(
        inputs_embeds=model.fusion_concat_proj(torch.cat([hidden, heard], dim=-1)), is_causal=True
    )

    # Patch a is predicted at the position before it: n_text - 1 + a.
    before = (
        (batch.n_text[:, None] - 1 + torch.arange(A, device=device))
        .clamp(max=hidden.shape[1] - 1)[..., None]
        .expand(-1, -1, H)
    )
    hidden, residual = hidden.gather(1, before), residual.gather(1, before)  # [B, A, H]

    stop_logits = model.stop_head(model.stop_actn(model.stop_proj(hidden)))  # [B, A, 2]
    is_last = torch.arange(A, device=device) == batch.n_patches[:, None] - 1
    stop = F.cross_entropy(
        stop_logits.flatten(0, 1), is_last.long().flatten(), reduction="none"
    ).view(B, A)
    phoneme = (
        F.cross_entropy(head(hidden).flatten(0, 2), batch.labels.flatten(), reduction="none")
        .view(B, A, P)
        .mean(-1)
    )

    b = torch.randint(B, (n_positions,), device=device)
    a = (torch.rand(n_positions, device=device) * batch.n_patches[b]).long()
    mu = torch.cat(
        [model.lm_to_dit_proj(hidden[b, a]), model.res_to_dit_proj(residual[b, a])], dim=-1
    )
    previous = history[b, (a - 1).clamp(min=0)] * (a > 0)[:, None, None]
    diffusion = model.feat_decoder.compute_loss(
        batch.patches[b, a].transpose(1, 2).contiguous(),
        mu,
        cond=previous.transpose(1, 2).contiguous(),
    )
    return {
        "diffusion": diffusion,
        "stop": masked_mean(stop, batch.valid),
        "phoneme": masked_mean(phoneme, batch.valid),
    }
