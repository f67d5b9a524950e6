"""VoxCPM2: voices by seed, by reference or by continuation; descriptions by instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from voxnative.errors import ParameterError
from voxnative.plugin import ARCHITECTURE
from voxnative.serving.adapters.base import ARTTSAdapter, SpeechCall, SpeechInputs
from voxnative.serving.adapters.registry import register_adapter

if TYPE_CHECKING:
    from voxnative.async_api import AsyncVoxNative
    from voxnative.serving.schema import SpeechBody

_WARMUP_STEPS = 3

# Fields that are passed on under another name.
_SAMPLING = {
    "cfg": "cfg_value",
    "timesteps": "inference_timesteps",
    "temperature": "temperature",
    "max_steps": "max_new_tokens",
    "max_silence_s": "max_silence_s",
    "normalize": "normalize",
}


@register_adapter(ARCHITECTURE)
class VoxCPM2Adapter(ARTTSAdapter):
    """Source: the prompt layouts of the reference, ``voxnative/prompt.py``."""

    field_of: ClassVar[dict[str, str]] = {
        "text": "input",
        "reference": "ref_audio",
        "prompt": "ref_audio",
        "prompt_text": "ref_text",
        "description": "instructions",
        **_SAMPLING,
    }

    def validate(self, body: SpeechBody) -> None:
        """`ref_text` belongs to `ref_audio`; a continuation takes no description.

        Raises:
            ParameterError: a combination that the model has no layout for.
        """
        if body.ref_text is not None and body.ref_audio is None:
            raise ParameterError("ref_text", body.ref_text, "only together with ref_audio")
        if body.instructions is not None and body.ref_text is not None:
            raise ParameterError(
                "instructions",
                body.instructions,
                "unset with ref_text: a recording that is continued has its voice already. Leave"
                " ref_text out to use ref_audio as a reference, which takes instructions",
            )

    def build(self, body: SpeechBody, inputs: SpeechInputs) -> SpeechCall:
        """The body's own recording and seed go before those of the voice.

        A recording that is continued speaks on in the named voice, where that is a recording.
        """
        arguments: dict[str, Any] = {
            argument: getattr(body, name) for argument, name in _SAMPLING.items()
        }
        arguments |= {"seed": body.seed, "description": body.instructions}
        voice = inputs.voice
        if inputs.ref_audio is not None:
            arguments |= _recording(inputs.ref_audio, body.ref_text)
            if body.ref_text is not None and voice is not None and voice.recording is not None:
                arguments["reference"] = (voice.recording, voice.sample_rate_hz)
        elif voice is not None and voice.recording is not None:
            # A described voice has to be a reference; otherwise a transcript is put to use.
            transcript = voice.transcript if body.instructions is None else None
            arguments |= _recording((voice.recording, voice.sample_rate_hz), transcript)
        elif voice is not None and body.seed is None:
            arguments["seed"] = voice.seed
        given = {name: value for name, value in arguments.items() if value is not None}
        return SpeechCall(body.input, given)

    async def warmup(self, speech: AsyncVoxNative) -> None:
        """A few patches: first calls allocate, and compile where there is a compiler."""
        async for _ in speech.stream("a", max_steps=_WARMUP_STEPS, seed=0):
            pass


def _recording(source: Any, transcript: str | None) -> dict[str, Any]:
    """A recording whose words are known is continued; another one is a reference."""
    if transcript is None:
        return {"reference": source}
    return {"prompt": source, "prompt_text": transcript}
