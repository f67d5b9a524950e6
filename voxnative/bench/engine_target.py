"""Our engine in this process, without a server: ``voxnative bench offline``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from voxnative.bench.errors import BenchError
from voxnative.bench.matrix import ServerParams
from voxnative.bench.paths import find_path, shown_model
from voxnative.bench.record import SpeechTask
from voxnative.bench.target import RequestError
from voxnative.errors import VoxNativeError

# Fields of the speech endpoint -> arguments of `AsyncVoxNative.prepare`.
_ARGUMENTS = {
    "seed": "seed",
    "cfg_value": "cfg",
    "inference_timesteps": "timesteps",
    "temperature": "temperature",
    "max_new_tokens": "max_steps",
    "max_silence_s": "max_silence_s",
}


class EngineTarget:
    """`AsyncVoxNative`.

    Args:
        model: checkpoint directory or Hugging Face id.
        settings: arguments of ``AsyncVoxNative``.
    """

    name = "voxnative (offline)"
    max_streams: int | None = None

    def __init__(self, model: str, settings: Mapping[str, Any]) -> None:
        from voxnative.async_api import AsyncVoxNative

        self.speech = AsyncVoxNative(model, **settings)
        self._settings = dict(settings)
        self._shown = shown_model(model)
        self.start_s = 0.0

    async def __aenter__(self) -> Self:
        started = time.perf_counter()
        await self.speech.start()
        self.start_s = time.perf_counter() - started
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.speech.close()

    async def speak(self, task: SpeechTask) -> AsyncGenerator[tuple[np.ndarray, int], None]:
        """See `Target.speak`; each piece is one chunk of the engine."""
        try:
            async for chunk in self.speech.stream(task.text, **call_arguments(task)):
                yield chunk.samples, chunk.sample_rate_hz
        except VoxNativeError as error:
            raise RequestError(str(error)) from error

    def facts(self) -> dict[str, Any]:
        """See `Target.facts`."""
        return {"model": self._shown, "settings": self._settings}


def call_arguments(task: SpeechTask) -> dict[str, Any]:
    """A task as arguments of `AsyncVoxNative.prepare`.

    Raises:
        BenchError: a field of `extra_body` that no argument stands for.
    """
    arguments: dict[str, Any] = {"seed": task.seed}
    if task.reference is not None and task.reference_text:
        arguments |= {"prompt": task.reference, "prompt_text": task.reference_text}
    elif task.reference is not None:
        arguments["reference"] = task.reference
    if task.description is not None:
        arguments["description"] = task.description
    for key, value in task.extra_body.items():
        if key == "voice":  # a name is a seed, and the task has one
            continue
        if key not in _ARGUMENTS:
            raise BenchError(
                f"extra_body: {key} is not valid without a server; valid: voice, "
                + ", ".join(_ARGUMENTS)
            )
        arguments[_ARGUMENTS[key]] = value
    return arguments


def offline_settings(params: ServerParams, matrix: Path) -> Mapping[str, Any]:
    """A row's deploy file as arguments of `AsyncVoxNative`.

    Raises:
        BenchError: flags of a server's command line, or a file that is not there.
    """
    if params.flags or params.foreign:
        given = ", ".join([*params.foreign, *params.flags])
        raise BenchError(f"server_params {given}: not valid offline; valid: model and deploy")
    if params.deploy is None:
        return {}
    path = find_path(params.deploy, matrix)
    if path is None:
        raise BenchError(f"server_params deploy: no file {params.deploy}")
    from dataclasses import fields

    from vllm import AsyncEngineArgs

    from voxnative.serving.deploy import read_deploy

    return dict(read_deploy(path, {field.name for field in fields(AsyncEngineArgs)}).engine)
