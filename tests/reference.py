"""The reference implementation (PyPI `voxcpm`) as an oracle: same weights, same noise.

`voxcpm`'s package `__init__` imports audio front ends that nothing here needs; its modules are
imported below an empty stand-in for it, with a stand-in for librosa that reads a WAV file.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import soundfile
import torch
from torch import Tensor


def _load_wav(path: str, *, sr: int, mono: bool) -> tuple[np.ndarray, int]:
    samples, rate = soundfile.read(path, dtype="float32")
    if rate != sr or not mono or samples.ndim != 1:
        raise ValueError(f"the reference is given mono WAV files at {sr} Hz, not {rate}")
    return samples, rate


def _import_reference() -> tuple[ModuleType, ModuleType]:
    importlib.import_module("transformers")  # looks for librosa; must not find the stand-in
    spec = importlib.util.find_spec("voxcpm")
    assert spec is not None
    root = Path(str(spec.origin)).parent
    for name, folder in (("voxcpm", root), ("voxcpm.model", root / "model")):
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = package
    librosa = ModuleType("librosa")
    librosa.load = _load_wav  # type: ignore[attr-defined]
    before = sys.modules.get("librosa")
    sys.modules["librosa"] = librosa
    try:
        model = importlib.import_module("voxcpm.model.voxcpm2")
    finally:
        # Others look for the real package by its spec, which a stand-in lacks.
        del sys.modules["librosa"]
        if before is not None:
            sys.modules["librosa"] = before
    model.tqdm = iter  # type: ignore[attr-defined] # no progress bar
    return model, importlib.import_module("voxcpm.modules.locdit.unified_cfm")


upstream, upstream_cfm = _import_reference()
upstream_vae = importlib.import_module("voxcpm.modules.audiovae.audio_vae_v2")
upstream_minicpm = importlib.import_module("voxcpm.modules.minicpm4.model")


@lru_cache(maxsize=8)
def load_reference(directory: Path) -> Any:
    """The reference `VoxCPM2Model` of a checkpoint, on the CPU, loaded once."""
    return upstream.VoxCPM2Model.from_local(str(directory), optimize=False, device="cpu")


@dataclass(frozen=True)
class ReferenceSpeech:
    """What the reference made of one request."""

    latents: Tensor  # [n, P, D], the generated patches
    stop_flags: Tensor  # [n] bool, the stop head's choice at each step, whether heeded or not
    audio: Tensor  # [n * patch samples]; after a prompt, decoded behind its last three patches


def draw_noise(directory: Path, seed: int, n_steps: int) -> Tensor:
    """The noise the reference draws for a seed, a patch [D, P] at a time: [n_steps, P, D]."""
    config = load_reference(directory).config
    generator = torch.Generator().manual_seed(seed)
    draws = [
        torch.randn((1, config.feat_dim, config.patch_size), generator=generator)
        for _ in range(n_steps)
    ]
    return torch.cat(draws).transpose(1, 2)


def reference_generate(
    directory: Path,
    text: str,
    *,
    reference: np.ndarray | None = None,
    prompt: np.ndarray | None = None,
    prompt_text: str | None = None,
    seed: int = 0,
    noise: Tensor | None = None,
    n_steps: int | None = None,
    min_steps: int = 2,
    max_steps: int = 2000,
    cfg: float = 2.0,
    timesteps: int = 10,
    temperature: float = 1.0,
) -> ReferenceSpeech:
    """Run the reference's whole loop on given noise, in any of its four prompt modes.

    Args:
        directory: a checkpoint, its `dtype` float32 for parity.
        text: what to say.
        reference, prompt: mono samples at the VAE's input rate.
        prompt_text: what the prompt says.
        seed: the noise is `draw_noise(directory, seed, ...)`, as after `torch.manual_seed(seed)`.
        noise: [n, P, D] to use instead; exhausting it is an error.
        n_steps: exactly so many patches, whatever the stop head says.
        min_steps: the stop head is ignored while the zero-based step is not above it.
        max_steps: at most so many patches; further capped at 6 * text tokens + 10.
    """
    model = load_reference(directory)
    ratio = 6.0  # patches a text token
    if n_steps is not None:
        min_steps = max_steps = n_steps
        ratio = float("1e6")
    if noise is None:
        n_target = len(model.text_tokenizer(text))
        noise = draw_noise(directory, seed, min(int(n_target * ratio + 10), max_steps))
    stop_flags: list[Tensor] = []
    watch = model.stop_head.register_forward_hook(
        lambda _module, _inputs, logits: stop_flags.append(logits.argmax(-1) == 1)
    )
    try:
        with _given_noise(noise * temperature), one_thread():
            audio, _, latents = model.generate_with_prompt_cache(
                text,
                _prompt_cache(model, reference, prompt, prompt_text),
                min_len=min_steps,
                max_len=max_steps,
                inference_timesteps=timesteps,
                cfg_value=cfg,
                retry_badcase_ratio_threshold=ratio,
            )
    finally:
        watch.remove()
    # Clones, because tensors made in inference mode cannot be used everywhere.
    return ReferenceSpeech(latents.clone(), torch.cat(stop_flags).clone(), audio[0].clone())


def _prompt_cache(
    model: Any,
    reference: np.ndarray | None,
    prompt: np.ndarray | None,
    prompt_text: str | None,
) -> dict[str, Any] | None:
    if reference is None and prompt is None:
        return None
    with tempfile.TemporaryDirectory() as folder:

        def wav(name: str, samples: np.ndarray | None) -> str | None:
            if samples is None:
                return None
            path = f"{folder}/{name}.wav"
            soundfile.write(path, samples, model.audio_vae.sample_rate, subtype="FLOAT")
            return path

        return model.build_prompt_cache(
            prompt_text=prompt_text,
            prompt_wav_path=wav("prompt", prompt),
            reference_wav_path=wav("reference", reference),
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: on networks this small, waiting for others costs most of the time."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


@contextmanager
def _given_noise(noise: Tensor) -> Iterator[None]:
    """Within the reference's solver, `torch.randn` hands out the rows of noise [n, P, D]."""
    rows = iter(noise.transpose(1, 2))

    class TorchWithGivenNoise(ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        @staticmethod
        def randn(shape: tuple[int, ...], *, device: torch.device, dtype: torch.dtype) -> Tensor:
            row = next(rows, None)
            if row is None:
                raise ValueError(f"the loop runs longer than the {len(noise)} rows of noise")
            return row.reshape(shape).to(device, dtype)

    upstream_cfm.torch = TorchWithGivenNoise("torch")  # type: ignore[attr-defined]
    try:
        yield
    finally:
        upstream_cfm.torch = torch  # type: ignore[attr-defined]
