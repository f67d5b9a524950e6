"""One voice on disk: a safetensors file whose header holds the metadata.

A single file appears whole or not at all, by one rename; there is no second file to disagree
with it. ``latents`` is what the model hears, ``samples`` what it was made from.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

SUFFIX = ".safetensors"
_HEADER_KEY = "voxnative_voice"


@dataclass(frozen=True)
class VoiceInfo:
    """What is known about a registered voice.

    Attributes:
        id: "voice_" and a hash of recording and transcript.
        name: chosen by whoever registered it.
        transcript: what is said in the recording, if that was given.
        consent: the speaker's consent, as it was stated.
        created_at: seconds since 1970.
        sample_rate_hz: rate of the stored samples.
        duration_s: length of the recording.
    """

    id: str
    name: str
    transcript: str | None
    consent: str
    created_at: int
    sample_rate_hz: int
    duration_s: float


def write_voice(directory: Path, info: VoiceInfo, samples: np.ndarray, latents: np.ndarray) -> None:
    """Write a voice, or replace the one of the same id.

    Args:
        directory: created if needed.
        info: metadata; its id names the file.
        samples: float32 ``[n]``.
        latents: float32 ``[n_patches, P, D]``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    content = save(
        {"samples": samples, "latents": np.ascontiguousarray(latents)},
        metadata={_HEADER_KEY: json.dumps(asdict(info))},
    )
    # Outside of the pattern that is read back; removed when anything fails.
    descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=".", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, directory / f"{info.id}{SUFFIX}")
    except BaseException:
        os.unlink(temporary)
        raise


def read_info(path: Path) -> VoiceInfo:
    """Read the header alone.

    Raises:
        ValueError: no voice, or one that another version wrote.
        OSError: it cannot be read.
    """
    try:
        with safe_open(path, "numpy") as file:
            header = json.loads((file.metadata() or {})[_HEADER_KEY])
        info = VoiceInfo(**header)
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is no voice") from error
    if path.name != f"{info.id}{SUFFIX}":
        raise ValueError(f"{path.name} holds the voice {info.id}")
    return info


def read_tensor(path: Path, name: str) -> np.ndarray:
    """Read ``samples`` or ``latents``.

    Raises:
        OSError: the voice was deleted meanwhile.
    """
    with safe_open(path, "numpy") as file:
        return file.get_tensor(name)
