"""VoxCPM-0.5B and VoxCPM1.5: voices by seed or by continuation of a recording with its words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from voxnative.errors import ParameterError
from voxnative.plugin import ARCHITECTURES
from voxnative.serving.adapters.base import SpeechCall, SpeechInputs
from voxnative.serving.adapters.registry import register_adapter
from voxnative.serving.adapters.voxcpm2 import VoxCPM2Adapter

if TYPE_CHECKING:
    from voxnative.serving.schema import SpeechBody


@register_adapter(ARCHITECTURES["voxcpm"])
class VoxCPMAdapter(VoxCPM2Adapter):
    """As VoxCPM2, less what the family was not trained on: references and descriptions."""

    def validate(self, body: SpeechBody) -> None:
        """A recording comes with its words, and no voice is described.

        Raises:
            ParameterError: a field that asks for another mode.
        """
        super().validate(body)
        if body.instructions is not None:
            raise ParameterError(
                "instructions",
                body.instructions,
                "unset: this model takes no description of a voice, only ref_audio with ref_text",
            )
        if body.ref_audio is not None and body.ref_text is None:
            raise ParameterError(
                "ref_text",
                None,
                "what is said in ref_audio: this model continues a recording (mode continuation)"
                " and takes no reference without its words",
            )

    def build(self, body: SpeechBody, inputs: SpeechInputs) -> SpeechCall:
        """As VoxCPM2's.

        Raises:
            ParameterError: the named voice is a recording whose words are not known.
        """
        voice = inputs.voice
        wordless = voice is not None and voice.recording is not None and voice.transcript is None
        if wordless and inputs.ref_audio is None:
            raise ParameterError(
                "voice",
                body.voice,
                "a built-in voice, or one that was registered with ref_text: this model continues"
                " a recording (mode continuation) and needs its words",
            )
        if inputs.ref_audio is not None:  # nothing else can be a reference beside it
            inputs = SpeechInputs(ref_audio=inputs.ref_audio)
        return super().build(body, inputs)
