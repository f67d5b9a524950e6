"""``POST /v1/audio/speech``: one text, one answer."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from voxnative.serving import sse
from voxnative.serving.http_errors import SpeechRoute
from voxnative.serving.limits import while_connected
from voxnative.serving.openapi import AUDIO, ERRORS
from voxnative.serving.pipeline import speak, whole
from voxnative.serving.schema import SpeechBody
from voxnative.serving.server import SpeechServer
from voxnative.serving.streaming import SpeechStream, opened

# Of an answer that is sent whole; a stream's is in its last event, where it has events.
FINISH_REASON_HEADER = "X-Finish-Reason"

router = APIRouter(route_class=SpeechRoute, tags=["speech"])


@router.post("/v1/audio/speech", response_class=Response, responses=AUDIO | ERRORS)
async def create_speech(body: SpeechBody, request: Request) -> Response:
    """Speak a text; the audio is sent as it is made."""
    server: SpeechServer = request.app.state.voxnative
    answer = server.answer(body)
    utterance = await while_connected(request, server.prepare(body))
    media_type = answer.format.content_type(answer.rate_hz)
    headers = answer.format.headers(answer.rate_hz)
    pieces = speak(utterance, answer)
    if not answer.streams:
        audio = await while_connected(request, whole(pieces))
        headers[FINISH_REASON_HEADER] = str(utterance.finish_reason)
        return Response(audio, media_type=media_type, headers=headers)
    pieces = await while_connected(request, opened(pieces))
    if body.stream_format == "sse":
        pieces, media_type = sse.events(pieces, utterance), sse.MEDIA_TYPE
        headers |= sse.HEADERS
    return SpeechStream(
        pieces,
        media_type=media_type,
        headers=headers,
        reader_timeout_s=server.settings.reader_timeout_s,
    )
