"""The reference implementation (PyPI `voxcpm`): one request after the other, streamed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from voxnative.bench.paths import shown_model
from voxnative.bench.peers.spoken_form import spoken_form
from voxnative.bench.peers.stand_ins import origin, stand_ins
from voxnative.bench.peers.voxcpm_import import STAND_INS, import_voxcpm2
from voxnative.bench.record import SpeechTask
from voxnative.bench.target import RequestError
from voxnative.config import VoxConfig

# Fields of the speech endpoint -> arguments of the reference.
_ARGUMENTS = {
    "cfg_value": "cfg_value",
    "inference_timesteps": "inference_timesteps",
    "max_new_tokens": "max_len",
}
_IGNORED = ("voice", "seed", "max_silence_s")  # the task's own seed is used


class ReferenceTarget:
    """`VoxCPM2Model` of a checkpoint.

    Args:
        name: in the report.
        model: checkpoint directory or Hugging Face id.
        options: of ``VoxCPM2Model.from_local``; by default its own compilation on CUDA.
        folders: of stand-ins for modules that it asks for, see `stand_ins`.
    """

    max_streams: int | None = 1

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
        self._options = dict(options)
        self._folders = dict(folders or {})
        self._held = ExitStack()
        self._model: Any = None
        self.start_s = 0.0

    async def __aenter__(self) -> Self:
        started = time.perf_counter()
        self._held.enter_context(stand_ins(self._folders))
        try:
            await asyncio.to_thread(self._load)
        except BaseException:
            self._held.close()
            raise
        self.start_s = time.perf_counter() - started
        return self

    def _load(self) -> None:
        import torch

        module = import_voxcpm2()
        # A bar a sentence would be timed too.
        module.tqdm = lambda iterable, **_: iterable  # type: ignore[attr-defined]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        options = {"optimize": device == "cuda", "device": device} | self._options
        self._options = options
        self._model = module.VoxCPM2Model.from_local(str(self._directory), **options)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._model = None
        self._held.close()

    async def speak(self, task: SpeechTask) -> AsyncGenerator[tuple[np.ndarray, int], None]:
        """See `Target.speak`; a thread makes each piece."""
        pieces = await asyncio.to_thread(self._begin, task)
        rate_hz = self._config.vae.out_sample_rate_hz
        try:
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                yield piece[0].reshape(-1).float().numpy(), rate_hz
        finally:
            pieces.close()

    def _begin(self, task: SpeechTask) -> Any:
        """The reference's generator of one task; its noise comes from torch's global generator."""
        import torch

        arguments: dict[str, Any] = {"cfg_value": self._config.cfm.inference_cfg_rate}
        for key, value in task.extra_body.items():
            if key in _IGNORED:
                continue
            if key not in _ARGUMENTS:
                raise RequestError(
                    f"extra_body: {key} is not valid; valid: {', '.join(_ARGUMENTS)}"
                )
            arguments[_ARGUMENTS[key]] = value
        text, words = spoken_form(task.text, self._config), task.reference_text
        cache = None
        if task.reference is not None and words:
            cache = self._model.build_prompt_cache(
                prompt_text=spoken_form(words, self._config), prompt_wav_path=task.reference
            )
        elif task.reference is not None:
            cache = self._model.build_prompt_cache(reference_wav_path=task.reference)
        if task.description is not None:
            text = f"({task.description}){text}"
        torch.manual_seed(task.seed)
        return self._model.generate_with_prompt_cache_streaming(
            target_text=text, prompt_cache=cache, **arguments
        )

    def facts(self) -> dict[str, Any]:
        """See `Target.facts`."""
        return {
            "voxcpm": version("voxcpm"),
            "model": self._shown,
            "options": self._options,
            "stand_ins": STAND_INS,
        } | {name: origin(name, name) for name in self._folders}
