"""An uploaded recording -> the samples of a voice: decoded, trimmed, of a usable length."""

from __future__ import annotations

import numpy as np

from voxnative.audio_input import load_audio
from voxnative.errors import AudioInputError, TooLargeError

MIN_VOICE_S, MAX_VOICE_S = 1.0, 30.0
MAX_UNTRIMMED_S = 120.0

_FRAME_S = 0.02
_SILENCE_DB = -40.0  # below the loud frames of the recording itself
_MARGIN_S = 0.1  # kept on both sides: soft onsets lie below the threshold


def voice_samples(
    recording: bytes, *, sample_rate_hz: int, max_bytes: int, field: str
) -> np.ndarray:
    """Decode an upload and cut the silence before and behind the speech.

    Args:
        recording: the encoded file.
        sample_rate_hz: the AudioVAE's input rate.
        max_bytes: largest accepted file.
        field: name of the upload, for error messages.

    Returns:
        float32 ``[n]``, 1 to 30 seconds.

    Raises:
        TooLargeError: more than `max_bytes`.
        AudioFormatError: no decoder reads it.
        AudioInputError: silent, too long or too short.
    """
    if len(recording) > max_bytes:
        raise TooLargeError(field, recording, f"at most {max_bytes} bytes")
    samples = load_audio(
        recording, field=field, sample_rate_hz=sample_rate_hz, max_s=MAX_UNTRIMMED_S
    )
    trimmed = trim_silence(samples, sample_rate_hz)
    length_s = len(trimmed) / sample_rate_hz
    if not MIN_VOICE_S <= length_s <= MAX_VOICE_S:
        raise AudioInputError(
            field,
            f"{length_s:.2f} seconds of speech",
            f"{MIN_VOICE_S:g} to {MAX_VOICE_S:g} seconds without the silence around them",
        )
    return trimmed


def trim_silence(samples: np.ndarray, sample_rate_hz: int) -> np.ndarray:
    """Cut both ends as far as they are 40 dB below the loud parts, but for a margin.

    Args:
        samples: float32 ``[n]``, not silent.
        sample_rate_hz: their rate.
    """
    frame = round(_FRAME_S * sample_rate_hz)
    padded = np.pad(samples, (0, -len(samples) % frame)).reshape(-1, frame)
    levels = np.sqrt(np.mean(padded**2, axis=1))  # [n_frames]
    loud = np.percentile(levels[levels > 0], 95)
    heard = np.flatnonzero(levels >= loud * 10 ** (_SILENCE_DB / 20))
    margin = round(_MARGIN_S * sample_rate_hz)
    start = max(heard[0] * frame - margin, 0)
    return samples[start : (heard[-1] + 1) * frame + margin].copy()
