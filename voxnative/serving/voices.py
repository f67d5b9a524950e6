"""Voices by name: those that were registered, and OpenAI's thirteen names.

The directory is the only truth: it is looked at again for each request, so that a voice is there
after a restart, and for every server that shares the directory.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voxnative.errors import ParameterError
from voxnative.serving.latents import Encode
from voxnative.serving.voice_file import (
    SUFFIX,
    VoiceInfo,
    read_info,
    read_tensor,
    write_voice,
)
from voxnative.units import MAX_SEED

# Below vLLM's logger, whose level and format it takes over.
logger = logging.getLogger("vllm.voxnative.voices")

# Clients of OpenAI's API send one of these. Source: openai-python, `audio/speech_create_params.py`.
OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "onyx", "nova", "sage", "shimmer"),
    *("verse", "marin", "cedar"),
)
# Clients of other servers for this model send this for "no voice in particular".
NO_VOICE = "default"
MAX_VOICES = 1000

_ID = re.compile(r"voice_[0-9a-f]{24}")
_NAME = re.compile(r"\w(?:[\w .'-]{0,62}\w)?")
_NAMES = "1 to 64 letters, digits, spaces and . ' - _, that is no voice's id"


@dataclass(frozen=True, eq=False)
class Voice:
    """What speaks under a name: a seed, a recording, or neither ("default").

    Attributes:
        id: of a registered voice, or the built-in name.
        name: as listed.
        seed: of a built-in voice.
        recording: float32 ``[n]`` of a registered voice.
        sample_rate_hz: rate of the recording.
        transcript: what is said in the recording, where that is known.
    """

    id: str
    name: str
    seed: int | None = None
    recording: np.ndarray | None = None
    sample_rate_hz: int | None = None
    transcript: str | None = None


def builtin_seed(name: str) -> int:
    """The seed behind one of OpenAI's names: the same on every machine and in every version."""
    digest = hashlib.sha256(f"voxnative voice {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") & MAX_SEED


class VoiceStore:
    """Registered voices in a directory, and the built-in ones.

    Args:
        directory: made when the first voice is registered.
        sample_rate_hz: the AudioVAE's input rate.
        encode: samples -> latents, in the engine.
    """

    def __init__(self, directory: Path, sample_rate_hz: int, encode: Encode) -> None:
        self.directory = directory
        self.sample_rate_hz = sample_rate_hz
        self._encode = encode
        self._known: dict[tuple[str, int], VoiceInfo | None] = {}  # by `_version`
        self._registering = asyncio.Lock()

    def registered(self) -> list[VoiceInfo]:
        """All registered voices, the oldest first."""
        keys = {key: path for path in self._files() if (key := _version(path)) is not None}
        self._known = {key: self._info(key, path) for key, path in keys.items()}
        found = [info for info in self._known.values() if info is not None]
        return sorted(found, key=lambda info: (info.created_at, info.id))

    def _info(self, key: tuple[str, int], path: Path) -> VoiceInfo | None:
        if key in self._known:
            return self._known[key]
        try:
            return read_info(path)
        except (OSError, ValueError) as error:
            logger.warning("a file in the voices directory is left out: %s", error)
            return None

    def _files(self) -> list[Path]:
        if not self.directory.is_dir():
            return []
        return [path for path in self.directory.iterdir() if path.suffix == SUFFIX]

    def names(self) -> list[tuple[str, str]]:
        """Ids and names of all voices; a registered voice hides a built-in one of its name."""
        registered = [(info.id, info.name) for info in self.registered()]
        taken = {name for _, name in registered}
        return [(name, name) for name in OPENAI_VOICES if name not in taken] + registered

    def resolve(self, name_or_id: str, *, field: str = "voice") -> Voice:
        """The voice of an id or a name.

        Raises:
            ParameterError: there is none; the message lists some that there are.
        """
        registered = self.registered()
        for info in registered:
            if name_or_id in (info.id, info.name):
                try:
                    samples = read_tensor(self._path(info), "samples")
                except FileNotFoundError:
                    break  # deleted just now
                rate = info.sample_rate_hz
                return Voice(info.id, info.name, None, samples, rate, info.transcript)
        if name_or_id in OPENAI_VOICES:
            return Voice(name_or_id, name_or_id, seed=builtin_seed(name_or_id))
        if name_or_id == NO_VOICE:
            return Voice(NO_VOICE, NO_VOICE)
        raise ParameterError(field, name_or_id, "a voice that /v1/audio/voices lists")

    async def register(
        self, name: str, samples: np.ndarray, *, consent: str, transcript: str | None = None
    ) -> VoiceInfo:
        """Store a voice; the same recording again only changes name and consent.

        Args:
            name: one of OpenAI's names is taken over by the registered voice.
            samples: float32 ``[n]`` at `sample_rate_hz`, trimmed.
            consent: the speaker's consent.
            transcript: what is said.

        Raises:
            ParameterError: the name is not valid or another voice has it.
        """
        if not _NAME.fullmatch(name) or _ID.fullmatch(name):
            raise ParameterError("name", name, _NAMES)
        info = VoiceInfo(
            id=content_id(samples, transcript),
            name=name,
            transcript=transcript,
            consent=consent,
            created_at=int(time.time()),
            sample_rate_hz=self.sample_rate_hz,
            duration_s=len(samples) / self.sample_rate_hz,
        )
        async with self._registering:
            self._check_room(info)
            latents = await self._encode(samples)
            await asyncio.to_thread(write_voice, self.directory, info, samples, latents)
        return info

    def _check_room(self, new: VoiceInfo) -> None:
        others = [info for info in self.registered() if info.id != new.id]
        if any(info.name == new.name for info in others):
            raise ParameterError("name", new.name, "a name that no registered voice has")
        if len(others) >= MAX_VOICES:
            raise ParameterError("name", new.name, f"at most {MAX_VOICES} voices; delete one first")

    def delete(self, name_or_id: str) -> VoiceInfo | None:
        """Delete a registered voice; None when there is none of that id or name."""
        for info in self.registered():
            if name_or_id in (info.id, info.name):
                self._path(info).unlink(missing_ok=True)
                return info
        return None

    def _path(self, info: VoiceInfo) -> Path:
        return self.directory / f"{info.id}{SUFFIX}"


def _version(path: Path) -> tuple[str, int] | None:
    """Name and time of change in ns; None when the file was deleted just now."""
    try:
        return path.name, path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def content_id(samples: np.ndarray, transcript: str | None) -> str:
    """Id of a voice: equal content has an equal id, whatever its name.

    Args:
        samples: float32 ``[n]``.
        transcript: what is said; with another one the voice speaks differently.
    """
    digest = hashlib.sha256(samples.tobytes())
    digest.update(b"\0" + (transcript or "").encode())
    return f"voice_{digest.hexdigest()[:24]}"
