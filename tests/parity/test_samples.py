"""The committed sample is what the reference makes of the shipped checkpoint today."""

from __future__ import annotations

from pathlib import Path

import torch

from examples.reference.capture import weights_digest
from tests.reference import reference_generate
from tests.samples import SAMPLE, read_samples


def test_the_sample_belongs_to_the_shipped_checkpoint(tiny_dir: Path) -> None:
    _, digest = read_samples()
    assert digest == weights_digest(tiny_dir), "capture anew: python -m examples.reference.capture"


def test_the_sample_is_small() -> None:
    assert SAMPLE.stat().st_size < 200_000


def test_the_reference_still_makes_it(tiny_dir: Path) -> None:
    samples, _ = read_samples()
    for sample in samples:
        speech = reference_generate(tiny_dir, **sample.request)
        torch.testing.assert_close(speech.latents, sample.latents, rtol=0, atol=1e-5)
        torch.testing.assert_close(speech.audio, sample.audio, rtol=0, atol=1e-3)
