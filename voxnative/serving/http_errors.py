"""Every error of the speech routes, in OpenAI's shape.

``{"error": {"message", "type", "param", "code"}}``. Messages go to the client alone and are
not logged, since one may quote what was asked to be spoken.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import Message
from vllm.logger import init_logger

from voxnative.errors import (
    AudioFormatError,
    EngineError,
    InvalidRequestError,
    MissingExtraError,
    PieceError,
    ReplicaLostError,
    TooLargeError,
    VoxNativeError,
)

# Below vLLM's logger, whose level and format it takes over.
logger = init_logger("vllm.voxnative.http_errors")

CLIENT_CLOSED_REQUEST = 499
_MAX_PARAM_CHARS = 120


class RequestFailed(VoxNativeError):
    """A request ends with this status.

    Args:
        status: of the answer.
        kind: OpenAI's ``type``.
        code: OpenAI's ``code``.
        message: for the client.
        param: field of the body, where one is to blame.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.body = {
            "error": {"message": message, "type": kind, "param": param, "code": code},
        }

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def queue_full(retry_after_s: int) -> RequestFailed:
    return RequestFailed(
        429,
        "rate_limit_error",
        "queue_full",
        f"the server is busy: its queue is full; try again in {retry_after_s} s",
        headers={"Retry-After": str(retry_after_s)},
    )


def share_lost(retry_after_s: int) -> RequestFailed:
    return RequestFailed(
        503,
        "server_error",
        "share_lost",
        "a replica has died, and the queue of the others is full; "
        f"try elsewhere, or again in {retry_after_s} s",
        headers={"Retry-After": str(retry_after_s)},
    )


def timed_out(limit_s: float) -> RequestFailed:
    return RequestFailed(
        504, "server_error", "timeout", f"the speech was not finished within {limit_s:g} s"
    )


def engine_dead() -> RequestFailed:
    return RequestFailed(503, "server_error", "engine_dead", "the engine is not running")


def engine_failed(error: EngineError) -> RequestFailed:
    if isinstance(error, ReplicaLostError) or isinstance(error.__cause__, ReplicaLostError):
        return RequestFailed(503, "server_error", "replica_lost", str(error))
    code = "piece_failed" if isinstance(error, PieceError) else "engine_error"
    return RequestFailed(500, "server_error", code, str(error))


def client_gone() -> RequestFailed:
    return RequestFailed(
        CLIENT_CLOSED_REQUEST, "invalid_request_error", "client_closed", "the client went away"
    )


def as_failure(error: BaseException) -> RequestFailed | None:
    """The answer to an error; None for one that nobody foresaw."""
    if isinstance(error, RequestFailed):
        return error
    if isinstance(error, RequestValidationError):
        return _from_pydantic(error)
    if isinstance(error, InvalidRequestError):
        status, code = 400, "invalid_value"
        if isinstance(error, AudioFormatError):
            status, code = 415, "unsupported_audio"
        elif isinstance(error, TooLargeError):
            status, code = 413, "too_large"
        return RequestFailed(status, "invalid_request_error", code, str(error), param=error.field)
    if isinstance(error, MissingExtraError):
        return RequestFailed(501, "server_error", "not_installed", str(error))
    if isinstance(error, EngineError):
        return engine_failed(error)
    if isinstance(error, HTTPException):
        return RequestFailed(
            error.status_code,
            "invalid_request_error" if error.status_code < 500 else "server_error",
            "too_large" if error.status_code == 413 else "http_error",
            str(error.detail),
            headers=error.headers,
        )
    return None


def _unforeseen(error: Exception) -> RequestFailed:
    """A defect of ours; the log gets its place, but not its message, which may quote a text."""
    place = "".join(traceback.format_tb(error.__traceback__))
    logger.error("%s in a speech route:\n%s", type(error).__name__, place)
    return RequestFailed(500, "server_error", "internal_error", "an error inside the server")


def _from_pydantic(error: RequestValidationError) -> RequestFailed:
    first = error.errors()[0]
    param = _param(first["loc"][1:]) if first["type"] != "json_invalid" else None
    where = "the body" if param is None else f"field '{param}'"
    code = "missing_field" if first["type"] == "missing" else "invalid_value"
    return RequestFailed(
        400, "invalid_request_error", code, f"{where}: {_message(first)}", param=param
    )


def _message(error: Mapping[str, Any]) -> str:
    """Pydantic's words, without the value that was given."""
    if error["type"] == "extra_forbidden":
        return "there is no such field"
    return re.sub(r"\s+", " ", str(error["msg"]))


def _param(location: tuple[str | int, ...]) -> str | None:
    """``items.3.speed``; a name that the client made up is shortened."""
    name = ".".join(str(part) for part in location)
    return name[:_MAX_PARAM_CHARS] or None


class SpeechRoute(APIRoute):
    """A route whose body has a largest size and whose errors have OpenAI's shape."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            limit = request.app.state.voxnative.settings.max_body_bytes
            try:
                return await handle(Request(request.scope, _limited(request, limit)))
            except Exception as error:
                return (as_failure(error) or _unforeseen(error)).response()

        return guarded


def _limited(request: Request, limit: int) -> Callable[[], Coroutine[Any, Any, Message]]:
    """The request's messages; more than `limit` bytes of body end it with 413."""
    n_bytes = 0

    async def receive() -> Message:
        nonlocal n_bytes
        message = await request.receive()
        n_bytes += len(message.get("body", b""))
        if n_bytes > limit:
            # FastAPI lets an HTTPException pass while it reads a body.
            raise HTTPException(413, f"the body is larger than {limit} bytes")
        return message

    return receive
