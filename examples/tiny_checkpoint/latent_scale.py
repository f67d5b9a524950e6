"""Give the latents zero mean and unit deviation by rewriting two convolutions.

Flow matching starts from unit noise, so its target should have unit scale; folding the
normalisation into the weights keeps the checkpoint format free of statistics.
"""

from __future__ import annotations

import torch

N_BATCHES, BATCH, SEGMENT_S = 24, 16, 2.56


@torch.no_grad()
def fold_statistics(vae, pool, rate_hz: int) -> None:
    """Rewrite `vae` in place: latents over `pool` get mean 0 and deviation 1 by channel.

    The encoder's last convolution gives (z - mean) / std; the decoder's first undoes it.
    Both are weight-normalised over output channels (`weight_g`, `weight_v`).
    """
    n_samples = int(SEGMENT_S * rate_hz) // vae.chunk_size * vae.chunk_size
    z = torch.cat(
        [vae.encode(pool.draw(BATCH, n_samples), rate_hz) for _ in range(N_BATCHES)]
    )  # [N, D, T]
    mean, std = z.mean(dim=(0, 2)), z.std(dim=(0, 2)).clamp(min=1e-3)

    last = vae.encoder.fc_mu
    last.weight_g.div_(std[:, None, None])
    last.bias.sub_(mean).div_(std)

    first = vae.decoder.model[0]
    v = first.weight_v
    weight = first.weight_g * v / v.flatten(1).norm(dim=1)[:, None, None]  # [out, D, kernel]
    first.bias.add_((weight * mean[None, :, None]).sum(dim=(1, 2)))
    scaled = weight * std[None, :, None]
    first.weight_v.copy_(scaled)
    first.weight_g.copy_(scaled.flatten(1).norm(dim=1)[:, None, None])
