"""A speech engine that follows a script, behind the server's real parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from voxnative.async_api import SHIPPED_CHECKPOINT
from voxnative.config import VoxConfig
from voxnative.errors import EngineError
from voxnative.long_request import LongRequest, plan_long
from voxnative.long_speech import LongRun
from voxnative.plugin import ARCHITECTURE
from voxnative.result import SpeechChunk
from voxnative.serving.adapters.registry import adapter_for
from voxnative.serving.limits import Admission
from voxnative.serving.media import MediaPolicy
from voxnative.serving.metrics import SpeechMetrics
from voxnative.serving.server import SpeechServer
from voxnative.serving.settings import ServerSettings
from voxnative.speech_request import RequestBuilder, SpeechRequest

RATE_HZ = 16_000
CHUNK_SAMPLES = 2_560


class Letters:
    """A token a character."""

    def encode(self, text: str) -> list[int]:
        return list(range(len(text)))


BUILDER = RequestBuilder(VoxConfig.from_dir(SHIPPED_CHECKPOINT), Letters(), context_len=512)


class NoLoRAs:
    """A registry in which nothing is loaded."""

    def names(self) -> list[str]:
        return []


@dataclass
class ScriptedSpeech:
    """Says `n_chunks` chunks, one every `pause_s`, and fails before chunk `fails_at`."""

    n_chunks: int = 4
    pause_s: float = 0.0
    fails_at: int | None = None
    sample_rate_hz: int = RATE_HZ
    errored: bool = False
    n_open: int = 0
    n_closed_early: int = 0
    loras: Any = field(default_factory=lambda: NoLoRAs())

    async def prepare_long(self, text: str, **arguments: Any) -> LongRequest:
        return plan_long(BUILDER, text, **arguments)

    def run_long(self, request: LongRequest) -> LongRun:
        return LongRun(self.run, request, RATE_HZ, time.perf_counter())

    def run(self, request: SpeechRequest) -> ScriptedRun:
        return ScriptedRun(self)


@dataclass
class ScriptedRun:
    """One run of the script."""

    speech: ScriptedSpeech
    finish_reason: str | None = None

    async def chunks(self) -> AsyncGenerator[SpeechChunk, None]:
        speech = self.speech
        speech.n_open += 1
        try:
            for index in range(speech.n_chunks):
                await asyncio.sleep(speech.pause_s)
                if index == speech.fails_at:
                    raise EngineError("the engine failed")
                samples = np.full(CHUNK_SAMPLES, 0.1 * (index + 1), np.float32)
                yield SpeechChunk(samples, RATE_HZ, index)
            self.finish_reason = "stop"
        except (asyncio.CancelledError, GeneratorExit):
            speech.n_closed_early += 1
            raise
        finally:
            speech.n_open -= 1


@dataclass
class Scripted:
    """A server around a script; its metrics have a registry of their own."""

    speech: ScriptedSpeech = field(default_factory=ScriptedSpeech)
    settings: ServerSettings = field(default_factory=ServerSettings)
    max_concurrency: int = 2

    def __post_init__(self) -> None:
        self.registry = CollectorRegistry()
        speech: Any = self.speech
        voices: Any = None  # no voice is named in these tests
        self.server = SpeechServer(
            speech=speech,
            engine_client=speech,
            settings=self.settings,
            adapter=adapter_for(ARCHITECTURE),
            admission=Admission(self.max_concurrency, self.settings.max_queue),
            metrics=SpeechMetrics(self.registry),
            voices=voices,
            media=MediaPolicy(),
            model_names=("tiny",),
        )

    def outcome(self, name: str) -> float | None:
        return self.registry.get_sample_value("voxnative_requests_total", {"outcome": name})
