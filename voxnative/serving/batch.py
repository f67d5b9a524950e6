"""``POST /v1/audio/speech/batch``: many texts, one answer when all are spoken."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from voxnative.errors import InvalidRequestError
from voxnative.serving.http_errors import RequestFailed, SpeechRoute
from voxnative.serving.limits import while_connected
from voxnative.serving.openapi import ERRORS, ErrorInfo
from voxnative.serving.pipeline import Answer, speak, whole
from voxnative.serving.schema import BatchBody, SpeechBody
from voxnative.serving.server import SpeechServer
from voxnative.serving.utterance import Utterance

router = APIRouter(route_class=SpeechRoute, tags=["speech"])


class BatchResult(BaseModel):
    """One item's audio in base64, or why there is none."""

    index: int
    status: Literal["success", "error"]
    audio_data: str | None = None
    media_type: str | None = None
    sample_rate: int | None = None
    finish_reason: str | None = None
    error: ErrorInfo | None = None


class BatchAnswer(BaseModel):
    """All results, in the order of the items."""

    results: list[BatchResult]
    total: int
    succeeded: int
    failed: int


@router.post("/v1/audio/speech/batch", responses=ERRORS)
async def create_batch(body: BatchBody, request: Request) -> BatchAnswer:
    """Speak up to 32 texts; all are validated before the first one runs."""
    server: SpeechServer = request.app.state.voxnative
    bodies = body.bodies()
    answer = server.answer(bodies[0])
    spoken = await while_connected(request, _speak_all(server, bodies, answer))
    results = [_result(index, outcome, answer) for index, outcome in enumerate(spoken)]
    n_failed = sum(result.status == "error" for result in results)
    return BatchAnswer(
        results=results,
        total=len(results),
        succeeded=len(results) - n_failed,
        failed=n_failed,
    )


@dataclass(frozen=True)
class _Spoken:
    audio: bytes
    finish_reason: str | None


async def _speak_all(
    server: SpeechServer, bodies: list[SpeechBody], answer: Answer
) -> list[_Spoken | RequestFailed]:
    """Audio of each body, or why there is none.

    Raises:
        RequestFailed: there is none at all, for the reason of the first.
    """
    utterances = [await _prepare(server, index, body) for index, body in enumerate(bodies)]
    # A batch takes the engine's width at most, so that it does not fill the queue by itself.
    width = asyncio.Semaphore(server.admission.max_concurrency)

    async def one(utterance: Utterance) -> _Spoken | RequestFailed:
        async with width:
            try:
                audio = await whole(speak(utterance, answer))
                return _Spoken(audio, utterance.finish_reason)
            except RequestFailed as error:
                return error

    spoken = await asyncio.gather(*(one(utterance) for utterance in utterances))
    if all(isinstance(outcome, RequestFailed) for outcome in spoken):
        assert isinstance(spoken[0], RequestFailed)
        raise spoken[0]
    return spoken


async def _prepare(server: SpeechServer, index: int, body: SpeechBody) -> Utterance:
    try:
        return await server.prepare(body)
    except InvalidRequestError as error:
        name = f"items.{index}.{error.field}"
        raise type(error)(name, error.value, error.valid) from error


def _result(index: int, outcome: _Spoken | RequestFailed, answer: Answer) -> BatchResult:
    if isinstance(outcome, RequestFailed):
        reason = ErrorInfo.model_validate(outcome.body["error"])
        return BatchResult(index=index, status="error", error=reason)
    return BatchResult(
        index=index,
        status="success",
        audio_data=base64.b64encode(outcome.audio).decode(),
        media_type=answer.format.content_type(answer.rate_hz),
        sample_rate=answer.rate_hz,
        finish_reason=outcome.finish_reason,
    )
