"""Bodies of the speech routes: OpenAI's fields, and ours beside them.

Types are strict and unknown fields are refused: a misspelt field is an error, not a default.
Ranges that belong to the model are checked by its adapter.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from voxnative.serving.formats.base import RATE_RANGE_HZ
from voxnative.serving.sample_chain import SPEED_RANGE

MAX_INPUT_CHARS = 4096
MAX_BATCH = 32

FormatName = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]


def _voice_name(value: object) -> object:
    """OpenAI's two forms of a voice: its name, or an object with its id."""
    if isinstance(value, dict):
        if set(value) != {"id"} or not isinstance(value["id"], str):
            raise PydanticCustomError("voice", "a voice is a name or an object with its id")
        return value["id"]
    return value


VoiceName = Annotated[
    str,
    BeforeValidator(_voice_name),
    Field(min_length=1, max_length=256),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": 256},
                {
                    "type": "object",
                    "properties": {"id": {"type": "string", "minLength": 1, "maxLength": 256}},
                    "required": ["id"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class VoiceFields(_Strict):
    """Who speaks and how the model samples; shared by single requests and batches."""

    model: str | None = Field(None, max_length=256, description="A name that /v1/models lists.")
    lora: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="A loaded LoRA adapter, unless model names it.",
    )
    voice: VoiceName | None = Field(
        None, description="A name, or {id}, that /v1/audio/voices lists."
    )
    instructions: str | None = Field(
        None, max_length=MAX_INPUT_CHARS, description="The voice in words; not with ref_text."
    )
    seed: int | None = Field(None, description="Reproduces the audio.")
    cfg_value: float | None = Field(None, description="Guidance weight.")
    inference_timesteps: int | None = Field(None, description="Solver steps a patch.")
    temperature: float | None = Field(None, description="Scale of the initial noise.")
    max_new_tokens: int | None = Field(None, description="Cap on the patches of audio.")
    max_silence_s: float | None = Field(
        None, description="Silence that ends the speech, in seconds; 0 waits for ever. Default: 3."
    )
    normalize: bool | None = Field(
        None, description="Write numbers, dates and signs as words, in English or Chinese."
    )
    ref_audio: str | None = Field(
        None, description="Recording of the voice: data URL, URL of an allowed host, or file path."
    )
    ref_text: str | None = Field(
        None,
        max_length=MAX_INPUT_CHARS,
        description="What is said in ref_audio, which is"
        " then continued; a registered voice named beside it is the reference.",
    )


class SpeechBody(VoiceFields):
    """Body of ``POST /v1/audio/speech``."""

    input: str = Field(min_length=1, max_length=MAX_INPUT_CHARS, description="What to speak.")
    response_format: FormatName = "mp3"
    speed: float = Field(1.0, ge=SPEED_RANGE[0], le=SPEED_RANGE[1])
    stream_format: Literal["audio", "sse"] = "audio"
    sample_rate: int | None = Field(None, ge=RATE_RANGE_HZ[0], le=RATE_RANGE_HZ[1])
    stream: bool | None = Field(
        None,
        description="Send audio as it is made. Default: true, but false for wav and flac, whose"
        " headers hold a length; always true with stream_format sse.",
    )


class BatchItem(VoiceFields):
    """One text of a batch; what it leaves out is taken from the batch."""

    input: str = Field(min_length=1, max_length=MAX_INPUT_CHARS)


class BatchBody(VoiceFields):
    """Body of ``POST /v1/audio/speech/batch``."""

    items: list[BatchItem] = Field(min_length=1, max_length=MAX_BATCH)
    response_format: FormatName = "mp3"
    speed: float = Field(1.0, ge=SPEED_RANGE[0], le=SPEED_RANGE[1])
    sample_rate: int | None = Field(None, ge=RATE_RANGE_HZ[0], le=RATE_RANGE_HZ[1])

    def bodies(self) -> list[SpeechBody]:
        """One whole request for each item."""
        shared = self.model_dump(exclude={"items"}, exclude_none=True)
        return [
            SpeechBody(**(shared | item.model_dump(exclude_none=True)), stream=False)
            for item in self.items
        ]
