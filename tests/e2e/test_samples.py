"""The engine reproduces the committed regression sample of the reference."""

from __future__ import annotations

import torch

from tests.engines import RecordingEngine
from tests.samples import read_samples


def test_the_engine_makes_what_the_reference_made(speaking: RecordingEngine) -> None:
    samples, _ = read_samples()
    calls = []
    for sample in samples:
        call = dict(sample.request)
        n_steps = call.pop("n_steps")
        calls.append(call | {"max_steps": n_steps, "min_steps": n_steps})
    for sample, made in zip(samples, speaking.run(*calls), strict=True):
        error = (made.latents - sample.latents).abs()
        print(f"latents: max {error.max():.2e}, mean {error.mean():.2e}")
        torch.testing.assert_close(made.latents, sample.latents, rtol=0, atol=1e-4)
        audio = torch.from_numpy(made.result.samples)
        torch.testing.assert_close(audio, sample.audio, rtol=0, atol=2e-3)
