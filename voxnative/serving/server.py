"""What all speech routes share, at ``app.state.voxnative``."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voxnative.errors import ParameterError
from voxnative.serving.adapters.base import ARTTSAdapter, SpeechCall, SpeechInputs
from voxnative.serving.formats.registry import FORMATS, answer_rate_hz
from voxnative.serving.http_errors import RequestFailed, engine_dead
from voxnative.serving.limits import Admission
from voxnative.serving.media import MediaPolicy, fetch_audio
from voxnative.serving.metrics import SpeechMetrics
from voxnative.serving.pipeline import Answer
from voxnative.serving.schema import SpeechBody
from voxnative.serving.settings import ServerSettings
from voxnative.serving.utterance import Utterance

if TYPE_CHECKING:
    from voxnative.async_api import AsyncVoxNative
    from voxnative.serving.voices import VoiceStore

# Clients of OpenAI's service send these names; here each means the model that is served.
MODEL_ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")


@dataclass(frozen=True)
class SpeechServer:
    """The parts that answer a request.

    Attributes:
        speech: the engine as our interface shows it.
        engine_client: the engine as vLLM's server shows it.
        settings: the operator's choices.
        adapter: what the model can do.
        admission: the queue.
        metrics: counters and histograms.
        voices: registered voices.
        media: what ``ref_audio`` may point to.
        model_names: names under which the model is served.
        n_api_servers: processes like this one in front of the engine; they share voices and the
            engine, and have a queue each.
    """

    speech: AsyncVoxNative
    engine_client: Any
    settings: ServerSettings
    adapter: ARTTSAdapter
    admission: Admission
    metrics: SpeechMetrics
    voices: VoiceStore
    media: MediaPolicy
    model_names: tuple[str, ...]
    n_api_servers: int = 1

    @property
    def is_engine_dead(self) -> bool:
        return bool(self.engine_client.errored)

    def note_replicas(self, n_alive: int, n_replicas: int) -> None:
        """So many of the engine's replicas live, each of which has its share of the slots.

        ``/health`` says 200 while one lives: a supervisor would restart a server that says 503,
        and end the streams of the others. The loss is in the metrics and in the log, for an
        operator to choose the moment.
        """
        self.metrics.replicas.labels("alive").set(n_alive)
        self.metrics.replicas.labels("dead").set(n_replicas - n_alive)
        self.admission.keep(Fraction(n_alive, n_replicas))

    def answer(self, body: SpeechBody) -> Answer:
        """How this body wants its samples.

        Raises:
            InvalidRequestError: a rate that the format cannot carry.
        """
        fmt = FORMATS[body.response_format]
        model_hz = self.speech.sample_rate_hz
        default_hz = self.settings.default_sample_rate_hz
        streams = fmt.streams_by_default if body.stream is None else body.stream
        return Answer(
            format=fmt,
            model_hz=model_hz,
            rate_hz=answer_rate_hz(fmt, body.sample_rate, default_hz, model_hz),
            speed=body.speed,
            streams=streams or body.stream_format == "sse",
        )

    async def call(self, body: SpeechBody) -> SpeechCall:
        """Check a body and look up what it names.

        Raises:
            InvalidRequestError: names the field.
            RequestFailed: another model (404), or the engine is dead (503).
        """
        if self.is_engine_dead:
            raise engine_dead()
        lora = self._lora(body)
        self.adapter.validate(body)
        ref_audio = voice = None
        # A recording of the body's own goes before the voice; one that is continued goes beside it.
        if body.voice is not None and (body.ref_audio is None or body.ref_text is not None):
            voice = await asyncio.to_thread(self.voices.resolve, body.voice)
        if body.ref_audio is not None:
            ref_audio = await fetch_audio(body.ref_audio, self.media)
        call = self.adapter.build(body, SpeechInputs(ref_audio, voice))
        return call if lora is None else replace(call, arguments={**call.arguments, "lora": lora})

    async def prepare(self, body: SpeechBody) -> Utterance:
        """A validated request; errors as :meth:`call`."""
        live = self.answer(body).streams
        return await Utterance.create(self, await self.call(body), live=live)

    def lora_names(self) -> str:
        """The loaded adapters, for a message."""
        return ", ".join(self.speech.loras.names()) or "none is loaded"

    def _lora(self, body: SpeechBody) -> str | None:
        """The adapter that a body names, as ``lora`` or as ``model``."""
        if body.model is None or body.model in (*self.model_names, *MODEL_ALIASES):
            return body.lora
        adapters = self.speech.loras.names()
        if body.model not in adapters:
            valid = ", ".join((*self.model_names, *adapters))
            raise RequestFailed(
                404,
                "invalid_request_error",
                "model_not_found",
                f"field 'model': no model of this name; valid: {valid}",
                param="model",
            )
        if body.lora not in (None, body.model):
            raise ParameterError("lora", body.lora, "unset where model names an adapter")
        return body.model


def default_voices_dir() -> Path:
    """Where voices are kept when no setting says so."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "voxnative" / "voices"
