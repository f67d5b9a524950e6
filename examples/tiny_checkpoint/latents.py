"""Speech shards to latent shards, and the training set that lives on the device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from shards import LABEL_RATE_HZ, Clip, read_shard, shard_indices, shard_path
from tokenizer import encode
from torch.nn import functional as F
from tqdm import tqdm

CLIPS_PER_BATCH = 32


@torch.no_grad()
def encode_clips(
    vae, clips: list[Clip], rate_hz: int, patch_size: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Encode utterances, each from a fresh encoder state and padded with silence to whole patches.

    Returns:
        Per clip the latents float16 [n_patches, P, D] and the phoneme labels uint8 [n_patches, P],
        a frame's label being the one at its centre.
    """
    device = next(vae.parameters()).device
    frame, patch = vae.chunk_size, vae.chunk_size * patch_size
    latents, labels = [], []
    for start in range(0, len(clips), CLIPS_PER_BATCH):
        group = clips[start : start + CLIPS_PER_BATCH]
        n_patches = [-(-len(c.samples) // patch) for c in group]
        batch = torch.zeros(len(group), 1, max(n_patches) * patch, device=device)
        for row, clip in zip(batch, group, strict=True):
            row[0, : len(clip.samples)] = torch.from_numpy(
                clip.samples.astype(np.float32) / 32768
            ).to(device)
        z = vae.encode(batch, rate_hz).transpose(1, 2).half().cpu().numpy()  # [B, frames, D]
        for row, clip, n in zip(z, group, n_patches, strict=True):
            latents.append(row[: n * patch_size].reshape(n, patch_size, -1))
            centres = ((np.arange(n * patch_size) + 0.5) * frame / rate_hz * LABEL_RATE_HZ).astype(
                int
            )
            known = np.append(clip.labels, 0)
            labels.append(known[centres.clip(max=len(clip.labels))].reshape(n, patch_size))
    return latents, labels


def encode_missing_shards(vae, settings, work: Path) -> int:
    """Encode every finished speech shard that has no latents; returns how many have them now."""
    source, target = work / "speech" / "train", work / "latents" / "train"
    target.mkdir(parents=True, exist_ok=True)
    missing = sorted(set(shard_indices(source)) - set(shard_indices(target)))
    for index in tqdm(missing, desc="latents", unit="shard", mininterval=5):
        clips = read_shard(shard_path(source, index))
        latents, labels = encode_clips(
            vae, clips, settings.vae.sample_rate_hz, settings.tts.patch_size
        )
        partial = shard_path(target, index).with_suffix(f".{os.getpid()}.part")
        with open(partial, "wb") as file:
            np.savez(
                file,
                line=np.array([c.line for c in clips]),
                n_patches=np.array([len(z) for z in latents]),
                latents=np.concatenate(latents),
                labels=np.concatenate(labels),
            )
        partial.replace(shard_path(target, index))
    return len(shard_indices(target))


@dataclass(frozen=True)
class TrainingSet:
    """All utterances on the device, N of them, M patches in all (plus padding at the end).

    patches [M + pad, P, D] float16; labels [M + pad, P] uint8; first_patch, n_patches, n_text [N]
    int64; text [N, longest] int64; ends_in_stop [N] bool: the text's last character is a full stop.
    """

    patches: torch.Tensor
    labels: torch.Tensor
    first_patch: torch.Tensor
    n_patches: torch.Tensor
    text: torch.Tensor
    n_text: torch.Tensor
    ends_in_stop: torch.Tensor


def load_training_set(settings, work: Path, device: torch.device) -> TrainingSet:
    """Read all latent shards and their texts onto the device."""
    lines = (work / "corpus" / "train.txt").read_text().splitlines()
    folder = work / "latents" / "train"
    patches, labels, n_patches, texts = [], [], [], []
    for index in shard_indices(folder):
        with np.load(shard_path(folder, index)) as data:
            patches.append(torch.from_numpy(data["latents"]))
            labels.append(torch.from_numpy(data["labels"]))
            n_patches += data["n_patches"].tolist()
            texts += [encode(lines[i]) for i in data["line"]]
    pad = max(n_patches)
    text = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.long)
    for row, ids in zip(text, texts, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    counts = torch.tensor(n_patches)
    stop_id = encode(".")[1]
    return TrainingSet(
        patches=F.pad(torch.cat(patches), (0, 0, 0, 0, 0, pad)).to(device),
        labels=F.pad(torch.cat(labels), (0, 0, 0, pad)).to(device),
        first_patch=(counts.cumsum(0) - counts).to(device),
        n_patches=counts.to(device),
        text=text.to(device),
        n_text=torch.tensor([len(ids) for ids in texts], device=device),
        ends_in_stop=torch.tensor([ids[-1] == stop_id for ids in texts], device=device),
    )
