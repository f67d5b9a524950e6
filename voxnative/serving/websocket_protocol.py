"""Messages of ``/v1/audio/speech/stream``, a WebSocket.

    client                                        server
    session.config  voice, format, parameters
    input.text      a piece of the text           audio.start  a clause, its format and true rate
    ...                                           (binary)     its audio, or audio.delta in base64
    input.done      the text is complete          audio.done   the clause is complete
                                                  session.done then the server closes
                                                  error        then the server closes

``session.config`` comes first or not at all. Every message but the binary ones is JSON.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from voxnative.errors import InvalidRequestError, ParameterError
from voxnative.serving.formats.base import RATE_RANGE_HZ
from voxnative.serving.http_errors import RequestFailed
from voxnative.serving.pipeline import Answer
from voxnative.serving.sample_chain import SPEED_RANGE
from voxnative.serving.schema import MAX_INPUT_CHARS, FormatName, SpeechBody, VoiceFields

NORMAL, REFUSED, FAILED, TRY_LATER = 1000, 1008, 1011, 1013


class SessionConfig(VoiceFields):
    """``session.config``: the fields of ``POST /v1/audio/speech`` but for its input."""

    type: Literal["session.config"] = "session.config"
    response_format: FormatName = "pcm"
    speed: float = Field(1.0, ge=SPEED_RANGE[0], le=SPEED_RANGE[1])
    sample_rate: int | None = Field(None, ge=RATE_RANGE_HZ[0], le=RATE_RANGE_HZ[1])
    audio_frames: Literal["binary", "base64"] = "binary"

    def body(self, text: str) -> SpeechBody:
        """The request that speaks one clause."""
        fields = self.model_dump(exclude={"type", "audio_frames"}, exclude_none=True)
        return SpeechBody(input=text, stream=True, **fields)


DEFAULT_CONFIG = SessionConfig.model_validate({})


class InputText(BaseModel):
    """``input.text``: the next piece of the text, as a language model writes it."""

    model_config = ConfigDict(strict=True, extra="forbid")
    type: Literal["input.text"]
    text: str = Field(max_length=MAX_INPUT_CHARS)


class InputDone(BaseModel):
    """``input.done``: no more text comes."""

    model_config = ConfigDict(strict=True, extra="forbid")
    type: Literal["input.done"]


ClientMessage = SessionConfig | InputText | InputDone
_MESSAGES: TypeAdapter[ClientMessage] = TypeAdapter(
    Annotated[ClientMessage, Field(discriminator="type")]
)
_TYPES = "session.config, input.text or input.done"


def parse_message(frame: str | bytes | None) -> ClientMessage:
    """Read one frame of the client.

    Args:
        frame: content of a text frame; None for a binary one.

    Raises:
        InvalidRequestError: names the field.
    """
    if frame is None:
        raise ParameterError("message", "a binary frame", "JSON in a text frame")
    try:
        return _MESSAGES.validate_json(frame)
    except ValidationError as error:
        raise _first_problem(error) from None


def _first_problem(error: ValidationError) -> InvalidRequestError:
    first = error.errors()[0]
    if first["type"].startswith("json_"):
        return ParameterError("message", "a text frame", "JSON")
    if first["type"].startswith("union_tag"):
        return ParameterError("type", first["input"], _TYPES)
    if first["type"] == "missing":
        return ParameterError(_field(first["loc"]), None, "a value: it is required")
    if first["type"] == "extra_forbidden":
        return ParameterError(_field(first["loc"]), first["input"], "no such field")
    return ParameterError(_field(first["loc"]), first["input"], first["msg"])


def _field(location: tuple[int | str, ...]) -> str:
    """The path of a field; the first part is the type of the message."""
    return ".".join(str(part) for part in location[1:])[:120] or "message"


@dataclass(frozen=True)
class ClauseEvents:
    """What the server says of one clause.

    Attributes:
        index: 0 for the first clause of the session.
        text: the clause.
        answer: how its samples are sent.
    """

    index: int
    text: str
    answer: Answer

    def start(self) -> dict[str, Any]:
        fmt = self.answer.format
        return {
            "type": "audio.start",
            "sentence_index": self.index,
            "sentence_text": self.text,
            "format": fmt.name,
            "encoding": fmt.encoding,
            "sample_rate": self.answer.rate_hz,
            "channels": 1,
        }

    def delta(self, piece: bytes) -> dict[str, Any]:
        audio = base64.b64encode(piece).decode("ascii")
        return {"type": "audio.delta", "sentence_index": self.index, "audio": audio}

    def done(self, n_bytes: int, finish_reason: str | None) -> dict[str, Any]:
        return {
            "type": "audio.done",
            "sentence_index": self.index,
            "n_bytes": n_bytes,
            "finish_reason": finish_reason,
        }


def session_done(n_clauses: int) -> dict[str, Any]:
    return {"type": "session.done", "total_sentences": n_clauses}


def error_event(failure: RequestFailed) -> dict[str, Any]:
    return {"type": "error", **failure.body}


def close_code(failure: RequestFailed) -> int:
    """Code of the closing frame after an error."""
    if failure.status in (429, 503):
        return TRY_LATER
    return FAILED if failure.status >= 500 else REFUSED
