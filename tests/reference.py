"""The reference implementation (PyPI `voxcpm`) as an oracle: same weights, same noise.

`voxcpm`'s package `__init__` imports audio front ends that nothing here needs; its modules are
imported below an empty stand-in for it, with stand-ins for librosa and torchaudio that read a WAV
file.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
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


def _load_wav_tensor(path: str) -> tuple[Tensor, int]:
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return torch.from_numpy(samples.T.copy()), rate


def _import_reference() -> list[ModuleType]:
    importlib.import_module("transformers")  # looks for librosa; must not find the stand-in
    spec = importlib.util.find_spec("voxcpm")
    assert spec is not None
    root = Path(str(spec.origin)).parent
    for name, folder in (("voxcpm", root), ("voxcpm.model", root / "model")):
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = package
    stand_ins = {name: ModuleType(name) for name in ("librosa", "torchaudio")}
    stand_ins["librosa"].load = _load_wav  # type: ignore[attr-defined]
    stand_ins["torchaudio"].load = _load_wav_tensor  # type: ignore[attr-defined]
    before = {name: sys.modules[name] for name in stand_ins if name in sys.modules}
    sys.modules.update(stand_ins)
    try:
        models = [importlib.import_module(f"voxcpm.model.{name}") for name in ("voxcpm2", "voxcpm")]
    finally:
        # Others look for the real package by its spec, which a stand-in lacks.
        for name in stand_ins:
            del sys.modules[name]
        sys.modules.update(before)
    for model in models:
        model.tqdm = iter  # type: ignore[attr-defined] # no progress bar
    return models


upstream, upstream_v1 = _import_reference()
upstream_cfm = importlib.import_module("voxcpm.modules.locdit.unified_cfm")
upstream_vae = importlib.import_module("voxcpm.modules.audiovae")
upstream_minicpm = importlib.import_module("voxcpm.modules.minicpm4.model")


@dataclass(frozen=True)
class ReferenceFamily:
    """The reference's classes of one architecture."""

    module: Any  # of the model
    model: Any
    config: Any
    vae: Any


FAMILIES = {
    "voxcpm2": ReferenceFamily(
        upstream, upstream.VoxCPM2Model, upstream.VoxCPMConfig, upstream_vae.AudioVAEV2
    ),
    "voxcpm": ReferenceFamily(
        upstream_v1, upstream_v1.VoxCPMModel, upstream_v1.VoxCPMConfig, upstream_vae.AudioVAE
    ),
}


@lru_cache(maxsize=8)
def load_reference(directory: Path, adapter: Path | None = None) -> Any:
    """The reference model of a checkpoint, on the CPU, loaded once.

    Args:
        directory: the checkpoint.
        adapter: directory of a LoRA adapter that the reference loads and applies itself.
    """
    family = FAMILIES[json.loads((directory / "config.json").read_text())["architecture"]]
    lora_config = None
    if adapter is not None:
        content = json.loads((adapter / "lora_config.json").read_text())
        lora_config = family.module.LoRAConfig(**content["lora_config"])
    model = family.model.from_local(
        str(directory), optimize=False, device="cpu", lora_config=lora_config
    )
    if adapter is not None:
        loaded, skipped = model.load_lora_weights(str(adapter))
        assert loaded
        assert not skipped
    return model


@dataclass(frozen=True)
class ReferenceSpeech:
    """What the reference made of one request."""

    latents: Tensor  # [n, P, D], the generated patches
    stop_flags: Tensor  # [n] bool, the stop head's choice at each step, whether heeded or not
    audio: Tensor  # [n * patch samples]; after a prompt, decoded behind its last patches


def draw_noise(directory: Path, seed: int, n_steps: int) -> Tensor:
    """The noise the reference draws for a seed, a patch [D, P] at a time: [n_steps, P, D]."""
    return _draw_noise(load_reference(directory), seed, n_steps)


def _draw_noise(model: Any, seed: int, n_steps: int) -> Tensor:
    config = model.config
    generator = torch.Generator().manual_seed(seed)
    draws = [
        torch.randn((1, config.feat_dim, config.patch_size), generator=generator)
        for _ in range(n_steps)
    ]
    return torch.cat(draws).transpose(1, 2)


def reference_generate(
    directory: Path, text: str, *, adapter: Path | None = None, **arguments: Any
) -> ReferenceSpeech:
    """`run_reference` on the reference model of a checkpoint, its `dtype` float32 for parity."""
    return run_reference(load_reference(directory, adapter), text, **arguments)


def run_reference(
    model: Any,
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
        model: as `load_reference` makes it.
        text: what to say.
        reference, prompt: mono samples at the VAE's input rate.
        prompt_text: what the prompt says.
        seed: the noise is that of `draw_noise`, as after `torch.manual_seed(seed)`.
        noise: [n, P, D] to use instead; exhausting it is an error.
        n_steps: exactly so many patches, whatever the stop head says.
        min_steps: the stop head is ignored while the zero-based step is not above it.
        max_steps: at most so many patches; further capped at 6 * text tokens + 10.
    """
    ratio = 6.0  # patches a text token
    if n_steps is not None:
        min_steps = max_steps = n_steps
        ratio = float("1e6")
    if noise is None:
        n_target = len(model.text_tokenizer(text))
        noise = _draw_noise(model, seed, min(int(n_target * ratio + 10), max_steps))
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
    # The older family hands out the prompt's last patches in front of the generated ones.
    latents = latents[-len(stop_flags) :]
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

        given = {"prompt_text": prompt_text, "prompt_wav_path": wav("prompt", prompt)}
        if reference is not None:
            given["reference_wav_path"] = wav("reference", reference)
        return model.build_prompt_cache(**given)


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
