"""nano-vllm-voxcpm: its own asynchronous pool on one GPU. It does not run on a CPU."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, aclosing
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from voxnative.bench.paths import shown_model
from voxnative.bench.peers.published_form import published_form
from voxnative.bench.peers.spoken_form import spoken_form
from voxnative.bench.peers.stand_ins import origin, stand_ins
from voxnative.bench.record import SpeechTask
from voxnative.bench.target import RequestError
from voxnative.config import VoxConfig

# Fields of the speech endpoint -> arguments of the pool's `generate`.
_ARGUMENTS = {
    "cfg_value": "cfg_value",
    "temperature": "temperature",
    "max_new_tokens": "max_generate_length",
}
_IGNORED = ("voice", "seed", "max_silence_s")  # the task's own seed is used; silence ends nothing
_DEFAULTS = {"inference_timesteps": 10, "max_model_len": 4096}  # the peer's own
_LONGEST = 2000  # patches, the peer's own default


class NanoVllmTarget:
    """Source: nano-vllm-voxcpm 2.0.5, ``nanovllm_voxcpm/models/voxcpm2/server.py``.

    Args:
        name: in the report.
        model: checkpoint directory or Hugging Face id.
        options: of ``VoxCPM.from_pretrained``. Its positions are limited to the checkpoint's by
            default, beyond which its kernels would read past a table.
        folders: of stand-ins for modules that it asks for, see `stand_ins`.
    """

    max_streams: int | None = None

    def __init__(
        self,
        name: str,
        model: str,
        options: Mapping[str, Any],
        folders: Mapping[str, Path] | None = None,
    ) -> None:
        from voxnative.checkpoint import resolve_checkpoint

        self.name = name
        self._shown = shown_model(model)
        self._directory = resolve_checkpoint(model)
        self._config = VoxConfig.from_dir(self._directory)
        longest = min(_DEFAULTS["max_model_len"], self._config.lm.max_position_embeddings)
        self._options = _DEFAULTS | {"max_model_len": longest} | dict(options)
        self._folders = dict(folders or {})
        self._held = ExitStack()
        self._pool: Any = None
        self._latents: dict[str, asyncio.Future[bytes]] = {}
        self.start_s = 0.0

    async def __aenter__(self) -> Self:
        started = time.perf_counter()
        self._held.enter_context(stand_ins(self._folders))
        folder = self._held.enter_context(tempfile.TemporaryDirectory())
        directory = published_form(self._directory, Path(folder))
        try:
            from nanovllm_voxcpm import VoxCPM

            self._pool = VoxCPM.from_pretrained(model=str(directory), **self._options)
            await self._pool.wait_for_ready()
        except BaseException:
            await self._stop()
            raise
        self.start_s = time.perf_counter() - started
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        with self._held:
            if self._pool is not None:
                await self._pool.stop()

    async def speak(self, task: SpeechTask) -> AsyncGenerator[tuple[np.ndarray, int], None]:
        """See `Target.speak`; each piece is a patch."""
        rate_hz = self._config.vae.out_sample_rate_hz
        try:
            arguments = self.arguments(task, await self._latents_of(task))
            async with aclosing(self._pool.generate(**arguments)) as pieces:
                async for samples in pieces:
                    yield np.asarray(samples, np.float32).reshape(-1), rate_hz
        except RuntimeError as error:  # what its worker raised, as text
            raise RequestError(str(error)[-300:]) from error

    def arguments(self, task: SpeechTask, latents: bytes | None) -> dict[str, Any]:
        """A task as keyword arguments of the pool's `generate`.

        Args:
            task: what to speak.
            latents: of its recording, as `encode_latents` gives them.

        Raises:
            RequestError: a field of `extra_body` that the peer has no argument for.
        """
        text = spoken_form(task.text, self._config)
        arguments: dict[str, Any] = {
            "target_text": f"({task.description}){text}" if task.description else text,
            "seed": task.seed,
            "cfg_value": self._config.cfm.inference_cfg_rate,
            # It refuses a request whose longest answer would not fit behind its prompt.
            "max_generate_length": min(_LONGEST, self._options["max_model_len"] // 2),
        }
        for key, value in task.extra_body.items():
            if key in _IGNORED:
                continue
            if key == "inference_timesteps":
                self._check_timesteps(value)
            elif key in _ARGUMENTS:
                arguments[_ARGUMENTS[key]] = value
            else:
                raise RequestError(
                    f"extra_body: {key} is not valid; valid: {', '.join(_ARGUMENTS)}"
                )
        if latents is not None and task.reference_text:
            words = spoken_form(task.reference_text, self._config)
            arguments |= {"prompt_latents": latents, "prompt_text": words}
        elif latents is not None:
            arguments["ref_audio_latents"] = latents
        return arguments

    def _check_timesteps(self, value: Any) -> None:
        fixed = self._options["inference_timesteps"]
        if value != fixed:
            raise RequestError(
                f"extra_body: inference_timesteps {value} is not valid; valid: {fixed}, which the"
                " peer's options fix for its engine"
            )

    async def _latents_of(self, task: SpeechTask) -> bytes | None:
        """Latents of a task's recording, encoded once: the peer's own way to keep a voice."""
        path = task.reference
        if path is None:
            return None
        if path not in self._latents:
            file = Path(path)
            encoding = self._pool.encode_latents(file.read_bytes(), file.suffix.lstrip("."))
            self._latents[path] = asyncio.ensure_future(encoding)
        return await asyncio.shield(self._latents[path])  # others may wait for the same

    def facts(self) -> dict[str, Any]:
        """See `Target.facts`; says which `flash_attn` and `librosa` it ran on."""
        return {
            "nano-vllm-voxcpm": version("nano-vllm-voxcpm"),
            "model": self._shown,
            "options": self._options,
            "flash_attn": origin("flash_attn", "flash-attn"),
            "librosa": origin("librosa", "librosa"),
        }
