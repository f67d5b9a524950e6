"""Finished audio -> a WAV or FLAC file, or WAV bytes."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import soundfile as sf

from voxnative.errors import ParameterError

FORMATS = {".wav": "WAV", ".flac": "FLAC"}
SUBTYPE = "PCM_16"
MAX_NAME_BYTES = 200  # file systems allow 255, and the partial file's name is longer


def wav_bytes(samples: np.ndarray, sample_rate_hz: int) -> bytes:
    """One complete WAV file, 16 bit.

    Args:
        samples: float32 [n] from -1 to 1; beyond that they clip.
        sample_rate_hz: rate of the samples.
    """
    buffer = io.BytesIO()
    sf.write(buffer, samples, sample_rate_hz, format="WAV", subtype=SUBTYPE)
    return buffer.getvalue()


def save_audio(path: str | Path, samples: np.ndarray, sample_rate_hz: int) -> Path:
    """Write a WAV or FLAC file, chosen by the suffix, 16 bit.

    The file appears when it is complete: an interrupted write leaves an older one as it was.

    Raises:
        ParameterError: the path cannot be written, or its suffix is unknown.
    """
    path = check_output(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        sf.write(
            partial, samples, sample_rate_hz, format=FORMATS[path.suffix.lower()], subtype=SUBTYPE
        )
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def check_output(path: str | Path) -> Path:
    """The path itself if `save_audio` can write there; an existing file will be replaced.

    Raises:
        ParameterError: unknown suffix, a folder, a missing folder, or no permission.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ParameterError("output", path, f"a file name ending in {' or '.join(FORMATS)}")
    path = path.resolve()
    if len(os.fsencode(path.name)) > MAX_NAME_BYTES:
        raise ParameterError("output", path, f"a file name of at most {MAX_NAME_BYTES} bytes")
    if path.exists() and not path.is_file():
        raise ParameterError("output", path, "a file, not a folder or a device")
    if not path.parent.is_dir():
        raise ParameterError(
            "output", path, f"a file in an existing folder ('{path.parent}' is none)"
        )
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ParameterError("output", path, "a place where you may write")
    return path
