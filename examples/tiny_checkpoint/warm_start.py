"""Step `warm_start`: begin with the weights of an exported checkpoint, not with random ones.

The AudioVAE's encoder stays as it is, so that latents keep their meaning: `train_tts` goes on with
LocEnc, LocDiT and the language models, `train_vae` with the decoder alone, both on whatever the
teacher reads now, and `export` takes what was trained. No checkpoint holds the phoneme head, the
discriminators or the optimisers: those begin anew, so that a smaller learning rate is in order.
"""

from __future__ import annotations

from pathlib import Path

import torch
from budget import Budget, Termination
from discriminators import Discriminators
from reference_model import build_vae
from safetensors.torch import load_file
from train_tts import TtsTrainer, save_state
from training_files import save


def widened(path: Path) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors, floating point ones in fp32."""
    return {
        name: value.float() if value.is_floating_point() else value
        for name, value in load_file(path).items()
    }


def run(settings, work: Path, checkpoint: Path) -> dict:
    """Write the states that both trainings resume from, unless there are some.

    Raises:
        FileNotFoundError: `checkpoint` lacks a weight file.
        RuntimeError: its sizes are not those of the settings; torch names the tensors.
    """
    if (work / "tts" / "state.pt").exists():
        return {"started": False}
    torch.manual_seed(settings.tts.seed)  # of what begins anew
    vae = build_vae(settings)
    vae.load_state_dict(widened(checkpoint / "audiovae.safetensors"))
    for name in ("frozen.pt", "decoder.pt"):
        save(work / "vae" / name, vae.state_dict())
    discriminators = Discriminators(settings.vae.discriminator_width).state_dict()
    state = {"stage": "autoencoder", "trainer": {"discriminators": discriminators}}
    save(work / "vae" / "state.pt", state)

    trainer = TtsTrainer(settings, torch.device(settings.tts.device))
    weights = widened(checkpoint / "model.safetensors")
    trainer.model.load_state_dict(weights)
    trainer.average.load_state_dict(weights)
    with Termination() as termination:
        save_state(work / "tts", trainer, Budget(0.0, 0.0, 0.0, termination))
    return {"started": True}
