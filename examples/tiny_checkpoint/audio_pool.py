"""Training audio on the device, growing while the teacher still reads."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from shards import FINISHED, read_shard, shard_indices, shard_path


class AudioPool:
    """Int16 samples of the finished shards, end to end, in one tensor that never moves.

    Args:
        folder: shard folder to read from.
        hours: capacity at `rate_hz`.
        device: where the samples live.
    """

    def __init__(self, folder: Path, hours: float, rate_hz: int, device: torch.device):
        self._folder, self._rate_hz = folder, rate_hz
        self._taken: set[int] = set()
        self._samples = torch.zeros(int(hours * 3600 * rate_hz), dtype=torch.int16, device=device)
        self._n = 0
        self._n_valid = torch.zeros((), dtype=torch.float32, device=device)

    @property
    def hours(self) -> float:
        """Audio held so far."""
        return self._n / self._rate_hz / 3600

    def refresh(self) -> None:
        """Take in the shards finished since the last call, until the pool is full."""
        for index in shard_indices(self._folder):
            if index in self._taken or self._n == len(self._samples):
                continue
            self._taken.add(index)
            samples = torch.from_numpy(
                np.concatenate(
                    [clip.samples for clip in read_shard(shard_path(self._folder, index))]
                )
            )
            samples = samples[: len(self._samples) - self._n]
            self._samples[self._n : self._n + len(samples)] = samples.to(self._samples.device)
            self._n += len(samples)
        self._n_valid.fill_(self._n)

    def wait_for(self, hours: float, stop_at: float, poll_s: float = 1.0) -> bool:
        """Wait until the pool holds `hours` of audio, is full, or the teacher has finished.

        Returns:
            False if the time `stop_at` (monotonic) came first, or the teacher read nothing.
        """
        while time.monotonic() < stop_at:
            finished = (self._folder.parent / FINISHED).exists()
            self.refresh()
            if self.hours >= hours or self._n == len(self._samples) or finished:
                return self._n > 0
            time.sleep(poll_s)
        return False

    def draw(self, batch: int, n_samples: int) -> torch.Tensor:
        """Draw random segments, float32 [batch, 1, n_samples] in -1..1; a CUDA graph may do it."""
        starts = (
            torch.rand(batch, device=self._samples.device) * (self._n_valid - n_samples)
        ).long()
        starts = starts.clamp(0, len(self._samples) - n_samples)  # float32 rounds large starts
        index = starts[:, None] + torch.arange(n_samples, device=self._samples.device)
        return self._samples[index].float().div_(32768.0).unsqueeze(1)
