"""Step `train_tts`: text and past speech -> the next latent patch.

Waits for the frozen VAE, encodes the speech that exists, trains on it, and takes in what the
teacher has read since when it is resumed. `average.pt` holds the averaged weights.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import torch
from buckets import Bucket, make_buckets
from budget import Budget, Termination, cosine
from graphed import GraphedStep
from journal import EVERY_S, Journal
from latents import TrainingSet, encode_missing_shards, load_training_set
from optimiser import MovingAverage, load_optimiser, make_adamw, set_rate
from reference_model import build_tts, build_vae
from torch import nn
from training_files import save
from tts_loss import PhonemeHead, add_dropout, tts_losses

SAVE_EVERY_S = 60.0


class TtsTrainer:
    """Weights, optimiser and the training step on one bucket."""

    def __init__(self, settings, device: torch.device):
        t = settings.tts
        self.settings, self.device = t, device
        self.model = build_tts(settings).to(device).train()
        self.head = PhonemeHead(t.hidden, t.patch_size).to(device)
        add_dropout(self.model, t.dropout)
        self.average = MovingAverage(self.model, t.ema_decay)
        parts = nn.ModuleList([self.model, self.head])
        self.parameters = list(parts.parameters())
        matrices = [p for p in self.parameters if p.ndim > 1]
        vectors = [p for p in self.parameters if p.ndim <= 1]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        self.optimiser = make_adamw(groups, (0.9, 0.98), t.weight_decay, device)

    def step(self, bucket: Bucket) -> dict[str, torch.Tensor]:
        """One optimiser step on a fresh batch of `bucket`."""
        t = self.settings
        losses = tts_losses(self.model, self.head, bucket.draw(), t, t.dit_positions)
        total = (
            losses["diffusion"]
            + t.stop_weight * losses["stop"]
            + t.phoneme_weight * losses["phoneme"]
        )
        self.optimiser.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimiser.step()
        self.average.update()
        return {name: value.detach() for name, value in losses.items()}

    def state_dict(self) -> dict:
        """Everything that resumes the training."""
        return {
            "model": self.model.state_dict(),
            "head": self.head.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Resume from `state_dict`."""
        self.model.load_state_dict(state["model"])
        self.head.load_state_dict(state["head"])
        self.average.load_state_dict(state["average"])
        load_optimiser(self.optimiser, state["optimiser"])


def save_state(folder: Path, trainer: TtsTrainer, budget: Budget) -> None:
    """Write `state.pt` and `average.pt`."""
    spent = {"spent_s": budget.spent_s, "n_steps": budget.n_steps}
    save(folder / "state.pt", spent | {"trainer": trainer.state_dict()})
    save(
        folder / "average.pt",
        {name: value.cpu() for name, value in trainer.average.state_dict().items()},
    )


def wait_for(path: Path, stop_at: float) -> bool:
    """Wait until `path` exists (True) or `stop_at` has come (False)."""
    while not path.exists():
        if time.monotonic() > stop_at:
            return False
        time.sleep(1.0)
    return True


def train(
    settings,
    folder: Path,
    data: TrainingSet,
    stop_at: float,
    finish: bool,
    termination: Termination,
) -> Budget:
    """Train on `data` until the budget is spent or it is told to stop; returns the budget."""
    t, device = settings.tts, torch.device(settings.tts.device)
    buckets = make_buckets(data, t.tokens_per_batch)
    trainer = TtsTrainer(settings, device)
    spent_s, n_steps = 0.0, 0
    if (folder / "state.pt").exists():
        state = torch.load(folder / "state.pt", map_location=device)
        trainer.load_state_dict(state["trainer"])
        spent_s, n_steps = state["spent_s"], state["n_steps"]
        torch.manual_seed(t.seed + n_steps)

    budget = Budget(t.train_s, spent_s, stop_at, termination, t.max_steps, n_steps, finish)
    journal = Journal(folder / "log.jsonl", "tts", t.train_s, 0.0 if t.max_steps else EVERY_S)
    set_rate(trainer.optimiser, t.learning_rate * 0.01)
    pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
    steps = [
        GraphedStep(lambda bucket=bucket: trainer.step(bucket), device, pool) for bucket in buckets
    ]
    chooser = random.Random(n_steps)
    losses, last_save = {}, time.monotonic()
    while not (budget.done or budget.cut):
        warm_up = min(1.0, (budget.n_steps + 1) / t.warmup_steps)
        set_rate(trainer.optimiser, t.learning_rate * warm_up * cosine(budget.progress))
        losses = chooser.choices(steps, [bucket.weight for bucket in buckets])[0]()
        budget.n_steps += 1
        journal.record(budget.n_steps, budget.spent_s, losses)
        if time.monotonic() - last_save > SAVE_EVERY_S:
            save_state(folder, trainer, budget)
            last_save = time.monotonic()
    if losses:
        journal.record(budget.n_steps, budget.spent_s, losses, force=True)
    journal.close()
    save_state(folder, trainer, budget)
    return budget


def run(settings, work: Path, stop_at: float, finish: bool = False) -> dict:
    """Train until the budget is spent or `stop_at` has come; `finish`: be done by then."""
    t, folder = settings.tts, work / "tts"
    if (folder / "done").exists() or not wait_for(work / "vae" / "frozen.pt", stop_at):
        return {"done": (folder / "done").exists()}
    device = torch.device(t.device)
    torch.manual_seed(t.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    vae = build_vae(settings)
    vae.load_state_dict(torch.load(work / "vae" / "frozen.pt"))
    encode_missing_shards(vae.to(device).eval(), settings, work)
    data = load_training_set(settings, work, device)
    with Termination() as termination:
        budget = train(settings, folder, data, stop_at, finish, termination)
    if budget.done:
        (folder / "done").touch()
    hours = len(data.patches) * t.patch_size * vae.chunk_size / settings.vae.sample_rate_hz / 3600
    return {
        "done": budget.done,
        "utterances": len(data.n_patches),
        "hours": round(hours, 2),
        "steps": budget.n_steps,
    }
