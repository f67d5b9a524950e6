"""``/v1/audio/voices``: list, register and delete voices.

Field names of the upload are OpenAI's (``name``, ``audio_sample``, ``consent``), with
``ref_text`` beside them for what is said in the recording.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Request, UploadFile
from pydantic import BaseModel

from voxnative.errors import ParameterError
from voxnative.serving.http_errors import RequestFailed, SpeechRoute, engine_dead
from voxnative.serving.openapi import ERRORS
from voxnative.serving.schema import MAX_INPUT_CHARS
from voxnative.serving.server import SpeechServer
from voxnative.serving.voice_file import VoiceInfo
from voxnative.serving.voice_recording import voice_samples
from voxnative.serving.voices import OPENAI_VOICES

router = APIRouter(route_class=SpeechRoute, tags=["voices"])

MAX_CONSENT_CHARS = 1000
_REFUSALS = frozenset(("false", "no", "0", "none", "null"))


class VoiceEntry(BaseModel):
    """One voice of the list."""

    id: str
    name: str


class VoiceList(BaseModel):
    """Answer of ``GET``; both keys hold the same, since clients look for either."""

    object: str = "list"
    data: list[VoiceEntry]
    voices: list[VoiceEntry]


class VoiceObject(VoiceEntry):
    """A registered voice."""

    object: str = "audio.voice"
    created_at: int
    duration_s: float
    ref_text: str | None


class VoiceDeleted(BaseModel):
    """Answer of ``DELETE``."""

    object: str = "audio.voice.deleted"
    id: str
    deleted: bool = True


@router.get("/v1/audio/voices")
async def list_voices(request: Request) -> VoiceList:
    """All voices, the built-in ones first."""
    server: SpeechServer = request.app.state.voxnative
    names = await asyncio.to_thread(server.voices.names)
    entries = [VoiceEntry(id=key, name=name) for key, name in names]
    return VoiceList(data=entries, voices=entries)


@router.post("/v1/audio/voices", responses=ERRORS)
async def create_voice(
    request: Request,
    name: Annotated[str, Form(description="Unique among the registered voices.")],
    audio_sample: Annotated[UploadFile, File(description="1 to 30 seconds of one speaker.")],
    consent: Annotated[
        str,
        Form(
            max_length=MAX_CONSENT_CHARS,
            description="The speaker's consent: a statement, or where it is kept.",
        ),
    ],
    ref_text: Annotated[
        str | None,
        Form(max_length=MAX_INPUT_CHARS, description="What is said in the recording."),
    ] = None,
) -> VoiceObject:
    """Register a voice; it can then be used as ``voice``, by name or id."""
    server: SpeechServer = request.app.state.voxnative
    if not consent.strip() or consent.strip().lower() in _REFUSALS:
        raise ParameterError("consent", consent, "a statement that the speaker agreed")
    if server.is_engine_dead:
        raise engine_dead()
    limit = server.settings.max_upload_bytes
    samples = await asyncio.to_thread(
        voice_samples,
        await audio_sample.read(limit + 1),
        sample_rate_hz=server.voices.sample_rate_hz,
        max_bytes=limit,
        field="audio_sample",
    )
    transcript = (ref_text or "").strip() or None
    info = await server.voices.register(
        name, samples, consent=consent.strip(), transcript=transcript
    )
    return _object(info)


@router.delete("/v1/audio/voices/{voice}", responses=ERRORS)
async def delete_voice(request: Request, voice: str) -> VoiceDeleted:
    """Delete a registered voice by name or id; speech that uses it goes on."""
    server: SpeechServer = request.app.state.voxnative
    info = await asyncio.to_thread(server.voices.delete, voice)
    if info is not None:
        return VoiceDeleted(id=info.id)
    if voice in OPENAI_VOICES:
        raise ParameterError("voice", voice, "a registered voice; this one is built in")
    raise RequestFailed(
        404,
        "invalid_request_error",
        "voice_not_found",
        "field 'voice': no registered voice of this name or id",
        param="voice",
    )


def _object(info: VoiceInfo) -> VoiceObject:
    fields: dict[str, Any] = {
        "id": info.id,
        "name": info.name,
        "created_at": info.created_at,
        "duration_s": info.duration_s,
        "ref_text": info.transcript,
    }
    return VoiceObject(**fields)
