"""One request on its way through the engine: outputs of vLLM -> chunks of samples."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np

from voxnative.config import VoxConfig
from voxnative.errors import EngineError, ReplicaLostError
from voxnative.result import SpeechChunk, SpeechResult
from voxnative.silence_guard import SilenceGuard, loudest
from voxnative.speech_request import SpeechRequest


class SpeechRun:
    """One request on its way through the engine; it is read once, by chunks or as a result."""

    def __init__(
        self, engine: Any, config: VoxConfig, request: SpeechRequest, started: float
    ) -> None:
        self._engine = engine
        self._config = config
        self._request = request
        self._started = started
        self.request_id = uuid.uuid4().hex
        self.finish_reason: Any = None
        self.ttfa_s: float | None = None

    async def chunks(self) -> AsyncGenerator[SpeechChunk, None]:
        """New samples as they exist; sets ``finish_reason`` at the end.

        Raises:
            ReplicaLostError: the replica that spoke died, and others live.
            EngineError: the engine failed or made samples that are not finite.
        """
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        from voxnative.engine.engine_input import engine_input, sampling_params

        request = self._request
        outputs = self._engine.generate(
            engine_input(request.prompt, self.request_id),
            sampling_params(request.params, request.n_max_steps, self._config),
            self.request_id,
            lora_request=None if request.lora is None else request.lora.engine_request,
        )
        index, has_run_out = 0, False
        rate_hz = self._config.vae.out_sample_rate_hz
        guard = SilenceGuard(request.params.max_silence_s, rate_hz)
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    for samples in output.multimodal_output["model_outputs"]:
                        if self.ttfa_s is None:
                            self.ttfa_s = time.perf_counter() - self._started
                        chunk, peak = self._chunk(samples.numpy(), index)
                        has_run_out = not guard.hears(chunk.samples, peak)
                        yield chunk
                        index += 1
                    if output.finished:
                        self.finish_reason = output.outputs[0].finish_reason
                    elif has_run_out and index > request.params.min_steps:
                        self.finish_reason = "silence"
                        return  # closing the outputs aborts the request
        except (EngineDeadError, EngineGenerateError) as error:
            if isinstance(error, EngineDeadError) and not self._engine.errored:
                raise ReplicaLostError("the replica that spoke has died; try again") from error
            reason = str(error) or repr(error.__cause__ or error)
            raise EngineError(f"the engine failed: {reason}") from error
        if self.finish_reason not in ("stop", "length"):
            raise EngineError(f"the request was ended by the engine ({self.finish_reason})")

    def _chunk(self, samples: np.ndarray, index: int) -> tuple[SpeechChunk, float]:
        """A chunk and its loudest sample."""
        peak = loudest(samples)
        if not math.isfinite(peak):
            raise EngineError(f"chunk {index} holds samples that are not finite")
        return SpeechChunk(samples, self._config.vae.out_sample_rate_hz, index), peak

    async def result(self) -> SpeechResult:
        """Read all chunks."""
        async with aclosing(self.chunks()) as chunks:
            parts = [chunk.samples async for chunk in chunks]
        assert self.ttfa_s is not None
        return SpeechResult(
            samples=np.concatenate(parts),
            sample_rate_hz=self._config.vae.out_sample_rate_hz,
            finish_reason=self.finish_reason,
            n_patches=len(parts),
            n_max_patches=self._request.n_max_steps,
            seed=self._request.seed,
            ttfa_s=self.ttfa_s,
            wall_s=time.perf_counter() - self._started,
        )
