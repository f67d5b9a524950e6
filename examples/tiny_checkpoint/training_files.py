"""What the trainings leave on disk, and how they are spoken to while they run."""

from __future__ import annotations

from pathlib import Path

import torch
from budget import Budget
from reference_model import build_vae


def averaged_vae(settings, average: dict[str, torch.Tensor]):
    """A VAE on the CPU that holds the averaged weights."""
    vae = build_vae(settings)
    vae.load_state_dict(
        {name: value.cpu() for name, value in average.items()} | dict(vae.named_buffers())
    )
    return vae.eval()


def save(path: Path, content: dict) -> None:
    """Save atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def save_vae(settings, folder: Path, trainer, budget: Budget) -> None:
    """Write `state.pt` and the averaged weights of `trainer`, a `train_vae.VaeTrainer`."""
    spent = {name: getattr(budget, name) for name in ("spent_s", "total_s", "n_steps")}
    state = {"stage": trainer.stage, "spent": spent, "trainer": trainer.state_dict()}
    save(folder / "state.pt", state)
    vae = averaged_vae(settings, trainer.average.state_dict())
    name = "average.pt" if trainer.stage == "autoencoder" else "decoder.pt"
    save(folder / name, vae.state_dict())


def requested_extension_s(folder: Path) -> float:
    """Seconds written to `extend_s` since the last call; the file is taken away."""
    path = folder / "extend_s"
    if not path.exists():
        return 0.0
    seconds = float(path.read_text())
    path.unlink()
    return seconds


def newest_vae(folder: Path) -> Path | None:
    """The averaged VAE weights written last, or None."""
    paths = [folder / name for name in ("average.pt", "frozen.pt", "decoder.pt")]
    return max((p for p in paths if p.exists()), key=lambda p: p.stat().st_mtime, default=None)
