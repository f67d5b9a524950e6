"""Audio -> a WAV or FLAC file, at once or block by block."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import soundfile as sf

from voxnative.errors import ParameterError

FORMATS = {".wav": "WAV", ".flac": "FLAC"}
SUBTYPE = "PCM_16"
MAX_NAME_BYTES = 200  # file systems allow 255, and the partial file's name is longer


class AudioFile:
    """A WAV or FLAC file, chosen by the suffix, 16 bit, written block by block.

    It appears when it is complete: an interrupted write leaves an older one as it was. Use it as
    a context manager; leaving that without :meth:`complete` discards what was written.

    Args:
        path: of the file.
        sample_rate_hz: rate of the samples.

    Raises:
        ParameterError: the path cannot be written, or its suffix is unknown.
    """

    def __init__(self, path: str | Path, sample_rate_hz: int) -> None:
        self._path = check_output(path)
        self._partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.partial")
        kind = FORMATS[self._path.suffix.lower()]
        self._file = sf.SoundFile(
            self._partial, "w", sample_rate_hz, channels=1, format=kind, subtype=SUBTYPE
        )

    def __enter__(self) -> AudioFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def write(self, samples: np.ndarray) -> None:
        """Append float32 [n] samples from -1 to 1; beyond that they clip.

        Raises:
            OSError: the disk is full, or the like.
        """
        try:
            self._file.write(samples)
        except sf.LibsndfileError as error:  # it keeps the system's reason to itself
            raise OSError(errno.EIO, f"writing {self._path} failed") from error

    def complete(self, path: Path | None = None) -> Path:
        """Close the file and let it appear, under another name if one is given."""
        self._file.close()
        return self._partial.replace(path or self._path)


def save_audio(path: str | Path, samples: np.ndarray, sample_rate_hz: int) -> Path:
    """Write a whole file; see `AudioFile`.

    Raises:
        ParameterError: the path cannot be written, or its suffix is unknown.
    """
    with AudioFile(path, sample_rate_hz) as file:
        file.write(samples)
        return file.complete()


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
