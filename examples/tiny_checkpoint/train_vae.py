"""Step `train_vae`: waveform <-> latents, in two stages.

1. `autoencoder`: encoder and decoder together; the discriminators join part of the way.
   At its end the latents' mean and deviation are folded into the weights and `frozen.pt`
   appears: from here on the latents are final and the TTS training may start.
2. `decoder`: the encoder stays, the decoder goes on learning beside the TTS training.

`average.pt` and, in the second stage, `decoder.pt` hold the averaged weights of the last minute.
`state.pt` resumes either stage. A file `extend_s` with a number of seconds, moved there whole,
lengthens the first stage while it runs: for when `probe` says that the latents are not good yet.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from audio_pool import AudioPool
from budget import Budget, Termination, cosine
from discriminators import Discriminators, discriminator_loss, generator_losses
from graphed import GraphedStep
from journal import EVERY_S, Journal
from latent_scale import fold_statistics
from optimiser import MovingAverage, load_optimiser, make_adamw, set_rate
from reference_model import build_vae
from training_files import averaged_vae, requested_extension_s, save, save_vae
from vae_losses import MelDistance, latent_whitening

SAVE_EVERY_S = 60.0
FEATURE_WEIGHT, ADVERSARIAL_WEIGHT = 3.0, 0.7
EMA_DECAY = 0.999
WARM_UP = 0.02  # share of a stage over which the learning rate rises from a tenth


class VaeTrainer:
    """Weights, optimisers and the training step of one stage."""

    def __init__(self, settings, stage: str, pool: AudioPool):
        v = settings.vae
        self.settings, self.stage, self.pool = settings, stage, pool
        self.device = torch.device(v.device)
        self.vae = build_vae(settings).to(self.device)
        self.discriminators = Discriminators(v.discriminator_width).to(self.device)
        self.mel = MelDistance(v.sample_rate_hz).to(self.device)
        trained = self.vae if stage == "autoencoder" else self.vae.decoder
        self.trained = list(trained.parameters())
        self.average = MovingAverage(self.vae, EMA_DECAY)
        self.optimiser = make_adamw(self.trained, (0.8, 0.99), 0.0, self.device)
        self.critic = make_adamw(self.discriminators.parameters(), (0.8, 0.99), 0.0, self.device)
        self._rate_index = torch.tensor([v.sample_rate_hz], device=self.device, dtype=torch.int32)
        self._n_samples = v.segment_frames * self.vae.chunk_size

    def _reconstruct(self, audio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rate_hz = self.settings.vae.sample_rate_hz
        if self.stage == "autoencoder":
            z = self.vae.encode(audio, rate_hz)  # [B, D, frames]
        else:
            with torch.no_grad():
                z = self.vae.encode(audio, rate_hz)
        sigma = self.settings.vae.latent_noise * torch.rand(len(z), 1, 1, device=self.device)
        return z, self.vae.decode(z + sigma * torch.randn_like(z), self._rate_index)

    def plain_step(self) -> dict[str, torch.Tensor]:
        """One step on spectral distance and whitening alone."""
        v = self.settings.vae
        audio = self.pool.draw(v.batch, self._n_samples)
        z, output = self._reconstruct(audio)
        mel, white = self.mel(output, audio), latent_whitening(z)
        self._update(v.mel_weight * mel + v.whiten_weight * white)
        return {"mel": mel.detach(), "white": white.detach()}

    def adversarial_step(self) -> dict[str, torch.Tensor]:
        """One step of the discriminators, then one of the VAE against them."""
        v = self.settings.vae
        audio = self.pool.draw(v.batch, self._n_samples)
        z, output = self._reconstruct(audio)

        real, fake = split(self.discriminators(torch.cat([audio, output.detach()])))
        critic_loss = discriminator_loss(real, fake)
        self.critic.zero_grad(set_to_none=True)
        critic_loss.backward()
        torch.nn.utils.clip_grad_norm_(self.discriminators.parameters(), 10.0, foreach=True)
        self.critic.step()

        self.discriminators.requires_grad_(False)
        real, fake = split(self.discriminators(torch.cat([audio, output])))
        adversarial, features = generator_losses(real, fake)
        mel, white = self.mel(output, audio), latent_whitening(z)
        loss = v.mel_weight * mel + ADVERSARIAL_WEIGHT * adversarial + FEATURE_WEIGHT * features
        self._update(loss + v.whiten_weight * white)
        self.discriminators.requires_grad_(True)
        names = ("mel", "white", "critic", "adversarial", "features")
        return dict(
            zip(
                names,
                (t.detach() for t in (mel, white, critic_loss, adversarial, features)),
                strict=True,
            )
        )

    def _update(self, loss: torch.Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 5.0, foreach=True)
        self.optimiser.step()
        self.average.update()

    def set_progress(self, progress: float) -> None:
        """Set both learning rates for a share of the stage."""
        rate = self.settings.vae.learning_rate * (1.0 if self.stage == "autoencoder" else 0.5)
        rate *= min(1.0, 0.1 + progress / WARM_UP)
        set_rate(self.optimiser, rate * cosine(progress, 0.1))
        set_rate(self.critic, rate * cosine(progress, 0.1))

    def state_dict(self) -> dict:
        """Everything that resumes the stage."""
        return {
            "vae": self.vae.state_dict(),
            "average": self.average.state_dict(),
            "discriminators": self.discriminators.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "critic": self.critic.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Resume from `state_dict`."""
        self.vae.load_state_dict(state["vae"])
        self.average.load_state_dict(state["average"])
        self.discriminators.load_state_dict(state["discriminators"])
        load_optimiser(self.optimiser, state["optimiser"])
        load_optimiser(self.critic, state["critic"])


def split(
    features: list[list[torch.Tensor]],
) -> tuple[list[list[torch.Tensor]], list[list[torch.Tensor]]]:
    """Split maps of [2 B, ...] into those of the first and of the second half of the batch."""
    halves = [[f.chunk(2) for f in part] for part in features]
    return [[a for a, _ in part] for part in halves], [[b for _, b in part] for part in halves]


def train_stage(
    settings,
    work: Path,
    stage: str,
    pool: AudioPool,
    stop_at: float,
    finish: bool,
    termination: Termination,
) -> bool:
    """Train one stage until its budget is spent (True) or it was told to stop (False)."""
    v, folder = settings.vae, work / "vae"
    trainer = VaeTrainer(settings, stage, pool)
    total_s = v.train_s if stage == "autoencoder" else v.decoder_s
    spent_s, n_steps = 0.0, 0
    if (folder / "state.pt").exists():
        state = torch.load(folder / "state.pt", map_location=trainer.device)
        if state["stage"] == stage:
            trainer.load_state_dict(state["trainer"])
            spent_s, n_steps = state["spent"]["spent_s"], state["spent"]["n_steps"]
            if stage == "autoencoder":
                total_s = state["spent"]["total_s"]  # it may have been extended
        else:  # the decoder stage begins with the frozen weights and the same discriminators
            trainer.vae.load_state_dict(
                torch.load(folder / "frozen.pt", map_location=trainer.device)
            )
            trainer.average = MovingAverage(trainer.vae, EMA_DECAY)
            trainer.discriminators.load_state_dict(state["trainer"]["discriminators"])

    finish = finish and stage == "decoder"
    budget = Budget(total_s, spent_s, stop_at, termination, v.max_steps, n_steps, finish)
    journal = Journal(folder / "log.jsonl", stage, total_s, 0.0 if v.max_steps else EVERY_S)
    adversarial_from = v.adversarial_from if stage == "autoencoder" else 0.0
    trainer.set_progress(budget.progress)
    step, adversarial, last_save, losses = None, False, time.monotonic(), {}
    while not (budget.done or budget.cut):
        if step is None or (not adversarial and budget.progress >= adversarial_from):
            adversarial = budget.progress >= adversarial_from
            step = GraphedStep(
                trainer.adversarial_step if adversarial else trainer.plain_step, trainer.device
            )
        trainer.set_progress(budget.progress)
        losses = step()
        budget.n_steps += 1
        journal.record(budget.n_steps, budget.spent_s, losses)
        if stage == "autoencoder":
            budget.total_s += requested_extension_s(folder)
        if time.monotonic() - last_save > SAVE_EVERY_S:
            save_vae(settings, folder, trainer, budget)
            pool.refresh()
            last_save = time.monotonic()
    if losses:
        journal.record(budget.n_steps, budget.spent_s, losses, force=True)
    journal.close()
    save_vae(settings, folder, trainer, budget)
    if stage == "autoencoder" and budget.done:
        vae = averaged_vae(settings, trainer.average.state_dict())
        fold_statistics(vae.to(trainer.device), pool, v.sample_rate_hz)
        save(folder / "frozen.pt", {name: value.cpu() for name, value in vae.state_dict().items()})
    return budget.done


def run(settings, work: Path, stop_at: float, finish: bool = False) -> dict:
    """Train what is left of both stages; `finish`: let the second be done at `stop_at`."""
    device = torch.device(settings.vae.device)
    torch.manual_seed(settings.vae.seed + int(time.time()) % 1000 * (device.type == "cuda"))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    folder = work / "vae"
    done_path = folder / "done"
    if not done_path.exists():
        pool = AudioPool(
            work / "speech" / "train", settings.vae.pool_hours, settings.vae.sample_rate_hz, device
        )
        if pool.wait_for(settings.vae.wait_hours, stop_at):
            with Termination() as termination:
                rest = (pool, stop_at, finish, termination)
                if not (folder / "frozen.pt").exists():
                    train_stage(settings, work, "autoencoder", *rest)
                if (folder / "frozen.pt").exists() and train_stage(
                    settings, work, "decoder", *rest
                ):
                    done_path.touch()
    return {"frozen": (folder / "frozen.pt").exists(), "done": done_path.exists()}
