"""nano-vllm-voxcpm: its own asynchronous pool on one GPU. It does not run on a CPU."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from voxnative.bench.paths import shown_model
from voxnative.bench.record import SpeechTask
from voxnative.bench.target import RequestError
from voxnative.config import VoxConfig

_ARGUMENTS = {
    "cfg_value": "cfg_value",
    "temperature": "temperature",
    "max_new_tokens": "max_generate_length",
}
_IGNORED = ("voice", "seed", "inference_timesteps")  # timesteps are the engine's, see `options`


class NanoVllmTarget:
    """Source: nano-vllm-voxcpm 2.0.5, ``nanovllm_voxcpm/models/voxcpm2/server.py``.

    Args:
        name: in the report.
        model: checkpoint directory or Hugging Face id.
        options: of ``VoxCPM.from_pretrained``.
    """

    max_streams: int | None = None

    def __init__(self, name: str, model: str, options: Mapping[str, Any]) -> None:
        from voxnative.checkpoint import resolve_checkpoint

        self.name = name
        self._shown = shown_model(model)
        self._directory = resolve_checkpoint(model)
        self._config = VoxConfig.from_dir(self._directory)
        self._options = dict(options)
        self._pool: Any = None
        self._latents: dict[str, bytes] = {}
        self.start_s = 0.0

    async def __aenter__(self) -> Self:
        from nanovllm_voxcpm import VoxCPM

        started = time.perf_counter()
        self._pool = VoxCPM.from_pretrained(model=str(self._directory), **self._options)
        await self._pool.wait_for_ready()
        self.start_s = time.perf_counter() - started
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._pool.stop()

    async def speak(self, task: SpeechTask) -> AsyncGenerator[tuple[np.ndarray, int], None]:
        """See `Target.speak`."""
        arguments = await self._arguments(task)
        rate_hz = self._config.vae.out_sample_rate_hz
        try:
            async with aclosing(self._pool.generate(**arguments)) as pieces:
                async for samples in pieces:
                    yield np.asarray(samples, np.float32).reshape(-1), rate_hz
        except RuntimeError as error:  # what its worker raised, as text
            raise RequestError(str(error)[-300:]) from error

    async def _arguments(self, task: SpeechTask) -> dict[str, Any]:
        text = f"({task.description}){task.text}" if task.description else task.text
        arguments: dict[str, Any] = {
            "target_text": text,
            "seed": task.seed,
            "cfg_value": self._config.cfm.inference_cfg_rate,
        }
        for key, value in task.extra_body.items():
            if key in _IGNORED:
                continue
            if key not in _ARGUMENTS:
                raise RequestError(
                    f"extra_body: {key} is not valid; valid: {', '.join(_ARGUMENTS)}"
                )
            arguments[_ARGUMENTS[key]] = value
        if task.reference is not None:
            latents = await self._encoded(task.reference)
            if task.reference_text:
                arguments |= {"prompt_latents": latents, "prompt_text": task.reference_text}
            else:
                arguments["ref_audio_latents"] = latents
        return arguments

    async def _encoded(self, path: str) -> bytes:
        """Latents of a recording, encoded once: the peer's own way to keep a voice."""
        if path not in self._latents:
            data = Path(path).read_bytes()
            suffix = Path(path).suffix.lstrip(".")
            self._latents[path] = await self._pool.encode_latents(data, suffix)
        return self._latents[path]

    def facts(self) -> dict[str, Any]:
        """See `Target.facts`."""
        return {
            "nano-vllm-voxcpm": version("nano-vllm-voxcpm"),
            "model": self._shown,
            "options": self._options,
        }
