"""What the routes' OpenAPI entries say of their answers."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from voxnative.serving.formats.registry import FORMATS


class ErrorInfo(BaseModel):
    """Content of OpenAI's error shape."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's error shape."""

    error: ErrorInfo


_ERRORS = {
    400: "A field is not valid; `param` names it.",
    404: "No such model.",
    413: "The body or a recording is too large.",
    415: "A recording cannot be decoded.",
    429: "The queue is full; Retry-After says when to come back.",
    500: "The engine failed on this request.",
    503: "The engine is not running, the replica that spoke has died, or the queue of those left "
    "is full (then with Retry-After).",
    504: "The speech was not finished in time.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text} for status, text in _ERRORS.items()
}

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_MEDIA_TYPES = sorted({known.media_type.split(";")[0] for known in FORMATS.values()})
AUDIO: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The audio, or its events with stream_format sse.",
        "content": dict.fromkeys(_MEDIA_TYPES, _BINARY)
        | {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
