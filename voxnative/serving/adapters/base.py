"""What a model family tells the server: which bodies it takes, and what it makes of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from voxnative.errors import InvalidRequestError

if TYPE_CHECKING:
    from voxnative.async_api import AsyncVoxNative
    from voxnative.serving.schema import SpeechBody
    from voxnative.serving.voices import Voice


@dataclass(frozen=True)
class SpeechInputs:
    """What a body's names stand for, looked up by the server.

    Attributes:
        ref_audio: encoded bytes of the body's own recording.
        voice: what ``voice`` names: a seed, or a recording; left out where the body's own
            recording replaces it.
    """

    ref_audio: bytes | None = None
    voice: Voice | None = None


@dataclass(frozen=True)
class SpeechCall:
    """Text and keyword arguments of ``AsyncVoxNative.prepare``."""

    text: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class ARTTSAdapter(ABC):
    """One family of autoregressive text-to-speech models.

    Attributes:
        field_of: argument of ``prepare`` -> field of the body, for error messages.
    """

    field_of: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def validate(self, body: SpeechBody) -> None:
        """Check what the model can do, before anything is looked up.

        Raises:
            InvalidRequestError: names the field.
        """

    @abstractmethod
    def build(self, body: SpeechBody, inputs: SpeechInputs) -> SpeechCall:
        """The call that speaks this body; only parameters that reach the model are in it."""

    @abstractmethod
    async def warmup(self, speech: AsyncVoxNative) -> None:
        """Run what makes the first request slow, before the server takes one."""

    def in_body_terms(self, error: InvalidRequestError) -> InvalidRequestError:
        """The same error, naming the body's field instead of the argument."""
        name = self.field_of.get(error.field, error.field)
        return type(error)(name, error.value, error.valid)
