"""Run the reference implementation on fixed seeds and keep its output as a regression sample.

    python -m examples.reference.capture [CHECKPOINT] [-o FILE]

Run it from the repository's root, in the environment of the tests (they hold the reference's
wrapper). The sample is small enough to commit: latents in full, audio in half precision. It names
the weights it was made with, so that a new checkpoint asks for a new sample.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.reference import reference_generate

SHIPPED = Path("voxnative/checkpoints/tiny")
SAMPLE = Path("tests/data/tiny_reference.safetensors")
# Their hidden states stay clear of the scalar quantiser's borders. "please close the door behind
# you." lies on one in its fourth patch, and falls to either side by the order of sums alone.
SENTENCES = ("the weather is very nice today.", "my brother came home in the evening.")
N_STEPS, CFG, TIMESTEPS = 16, 2.0, 10


def weights_digest(checkpoint: Path) -> str:
    """sha256 over all weight files and the config of a checkpoint."""
    digest = hashlib.sha256()
    for pattern in ("config.json", "*.safetensors", "*.bin", "*.pth"):
        for path in sorted(checkpoint.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def capture(checkpoint: Path, output: Path) -> None:
    """Write latents [n, P, D] and audio [n_samples] of each sentence, with how they were made."""
    tensors: dict[str, torch.Tensor] = {}
    requests = []
    for index, text in enumerate(SENTENCES):
        request = {"text": text, "seed": 100 + index, "cfg": CFG, "timesteps": TIMESTEPS}
        speech = reference_generate(checkpoint, **request, n_steps=N_STEPS)
        tensors[f"latents.{index}"] = speech.latents.contiguous()
        tensors[f"audio.{index}"] = speech.audio.half().contiguous()
        requests.append(request | {"n_steps": N_STEPS})
    metadata = {"requests": json.dumps(requests), "weights_sha256": weights_digest(checkpoint)}
    output.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, output, metadata=metadata)
    print(f"{output}: {len(requests)} requests, {output.stat().st_size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description="Capture a regression sample.")
    parser.add_argument("checkpoint", nargs="?", type=Path, default=SHIPPED)
    parser.add_argument("-o", "--output", type=Path, default=SAMPLE)
    args = parser.parse_args()
    capture(args.checkpoint, args.output)


if __name__ == "__main__":
    main()
