"""Any recording -> mono float32 at the model's rate.

Files and bytes are read by soundfile (WAV, FLAC, OGG, MP3) and otherwise by PyAV (M4A, AAC, WebM,
...); arrays need their rate. Channels are averaged before soxr resamples, as the reference does.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO

import av
import numpy as np
import soundfile as sf
import soxr

from voxnative.errors import AudioFormatError, AudioInputError
from voxnative.units import SILENCE_PEAK

AudioSource = str | Path | bytes | np.ndarray | tuple[np.ndarray, int]

MIN_RATE_HZ, MAX_RATE_HZ = 1_000, 768_000
MAX_CHANNELS = 16
LOUDEST_PEAK = 8.0  # float audio is -1 to 1; far above that it is unscaled PCM
_FULL_SCALE = {"uint8": 128.0, "int16": 2.0**15, "int32": 2.0**31}
_READABLE = "a readable audio recording (WAV, FLAC, OGG, MP3, M4A, AAC, WebM, ...)"

# PyAV may open containers of single recordings only: a playlist or a concat script would make
# FFmpeg open whatever files and addresses it names.
_CONTAINERS = "aac,ac3,aiff,amr,asf,au,avi,caf,flac,matroska,mov,mp3,mp4,ogg,wav,webm"


def load_audio(
    source: AudioSource,
    *,
    field: str,
    sample_rate_hz: int,
    max_s: float,
    array_rate_hz: int | None = None,
) -> np.ndarray:
    """Read a recording as the model wants it.

    Args:
        source: path, encoded bytes, array, or (array, rate in Hz). Arrays are [n_samples] or
            [n_samples, n_channels] in either order (the shorter axis is the channels).
        field: name of the argument, for error messages.
        sample_rate_hz: rate to resample to.
        max_s: longest accepted recording, in seconds.
        array_rate_hz: rate of a bare array.

    Returns:
        float32 [n_samples] at `sample_rate_hz`.

    Raises:
        AudioInputError: empty, silent, not finite, too long, or without a rate.
        AudioFormatError: bytes that no decoder reads.
    """
    channels, rate_hz = _read(source, field, max_s, array_rate_hz)  # [n, n_channels]
    n_samples = len(channels) if channels.shape[1] else 0
    if n_samples > max_s * rate_hz:
        raise AudioInputError(field, source, f"a recording of at most {max_s:g} seconds")
    if n_samples == 0:
        raise AudioInputError(field, source, "a recording that is not empty")
    if not np.isfinite(channels).all():
        raise AudioInputError(field, source, "finite samples (no NaN, no infinity)")
    mono = channels.mean(axis=1, dtype=np.float32)
    peak = float(np.abs(mono).max())
    if peak < SILENCE_PEAK:
        raise AudioInputError(
            field, source, f"a recording that is not silent (peak {SILENCE_PEAK:g} or more)"
        )
    if peak > LOUDEST_PEAK:
        raise AudioInputError(field, source, "float samples from -1 to 1, or int16")
    resampled = mono if rate_hz == sample_rate_hz else soxr.resample(mono, rate_hz, sample_rate_hz)
    if len(resampled) == 0:
        raise AudioInputError(field, source, "a recording that is not empty")
    return np.ascontiguousarray(resampled, dtype=np.float32)


def _read(
    source: AudioSource, field: str, max_s: float, array_rate_hz: int | None
) -> tuple[np.ndarray, int]:
    """Samples [n, n_channels] and their rate; reads little more than `max_s` of a file."""
    if isinstance(source, np.ndarray):
        return _from_array(source, array_rate_hz, field)
    if isinstance(source, tuple) and len(source) == 2:
        return _from_array(source[0], source[1], field)
    if isinstance(source, (bytes, bytearray, memoryview)):
        if len(source) == 0:
            raise AudioInputError(field, source, "a recording that is not empty")
        return _decode(io.BytesIO(source), source, field, max_s)
    if isinstance(source, (str, Path)):
        return _from_file(Path(source), field, max_s)
    raise AudioInputError(field, source, "a path, encoded bytes, an array or (array, rate)")


def _from_array(samples: Any, rate_hz: Any, field: str) -> tuple[np.ndarray, int]:
    if rate_hz is None:
        raise AudioInputError(field, samples, "an array with its rate: (array, sample_rate_hz)")
    is_rate = isinstance(rate_hz, (int, np.integer)) and not isinstance(rate_hz, bool)
    if not is_rate or not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise AudioInputError(field, rate_hz, f"a rate from {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz")
    if not isinstance(samples, np.ndarray) or samples.ndim not in (1, 2):
        raise AudioInputError(field, samples, "an array of shape [n] or [n, channels]")
    if samples.ndim == 1:
        samples = samples[:, None]
    elif samples.shape[0] < samples.shape[1]:
        samples = samples.T
    if samples.shape[1] > MAX_CHANNELS:
        raise AudioInputError(field, samples, f"at most {MAX_CHANNELS} channels")
    return _to_float(samples, field), int(rate_hz)


def _to_float(samples: np.ndarray, field: str) -> np.ndarray:
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    full_scale = _FULL_SCALE.get(samples.dtype.name)
    if full_scale is None:
        raise AudioInputError(field, samples, f"float, {', '.join(_FULL_SCALE)} samples")
    offset = full_scale if samples.dtype.kind == "u" else 0.0
    return ((samples - offset) / full_scale).astype(np.float32)


def _from_file(path: Path, field: str, max_s: float) -> tuple[np.ndarray, int]:
    try:
        if not path.is_file():
            raise AudioInputError(field, path, "an existing audio file")
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise AudioInputError(field, path, "a recording that is not empty")
            return _decode(file, path, field, max_s)
    except OSError as error:
        raise AudioInputError(field, path, f"a file that can be read ({error.strerror})") from error


def _decode(file: BinaryIO, source: Any, field: str, max_s: float) -> tuple[np.ndarray, int]:
    try:
        with sf.SoundFile(file) as sound:
            n_wanted = int(max_s * sound.samplerate) + 1  # one too many tells "too long"
            return sound.read(n_wanted, dtype="float32", always_2d=True), sound.samplerate
    except (sf.LibsndfileError, TypeError):  # TypeError: a name that ends in .raw
        file.seek(0)
    try:
        return _decode_with_av(file, max_s)
    except av.FFmpegError as error:
        raise AudioFormatError(field, source, _READABLE) from error


def _decode_with_av(file: BinaryIO, max_s: float) -> tuple[np.ndarray, int]:
    with av.open(file, options={"format_whitelist": _CONTAINERS}) as container:
        stream = next(iter(container.streams.audio), None)
        if stream is None:  # a silent film
            return np.zeros((0, 1), np.float32), MIN_RATE_HZ
        resampler = av.AudioResampler(format="fltp")
        blocks: list[np.ndarray] = []
        n_samples, rate_hz = 0, stream.rate
        for frame in container.decode(stream):
            for piece in resampler.resample(frame):
                blocks.append(piece.to_ndarray().T)  # [n, n_channels]
                n_samples += len(blocks[-1])
            if n_samples > max_s * rate_hz:
                break
    return np.concatenate(blocks) if blocks else np.zeros((0, 1), np.float32), rate_hz
