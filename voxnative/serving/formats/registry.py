"""All values of ``response_format``."""

from __future__ import annotations

from functools import partial

from voxnative.errors import InvalidRequestError
from voxnative.serving.formats.base import RATE_RANGE_HZ, AudioFormat
from voxnative.serving.formats.compressed import AAC, FLAC, MP3, OPUS, CompressedEncoder
from voxnative.serving.formats.pcm import PcmEncoder
from voxnative.serving.formats.wav import WavEncoder

_MPEG_RATES_HZ = (16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_OPUS_RATES_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)

# A frame of MP3 or AAC has a fixed number of samples: at 48 kHz it is 21 to 24 ms, and lengths are
# right to within it.
FORMATS = {
    known.name: known
    for known in (
        AudioFormat(
            "mp3",
            "audio/mpeg",
            "mp3",
            partial(CompressedEncoder, MP3),
            rates_hz=_MPEG_RATES_HZ,
            native_rate_hz=48_000,
        ),
        AudioFormat(
            "opus",
            "audio/ogg",
            "opus",
            partial(CompressedEncoder, OPUS),
            rates_hz=_OPUS_RATES_HZ,
            native_rate_hz=48_000,
        ),
        AudioFormat(
            "aac",
            "audio/aac",
            "aac",
            partial(CompressedEncoder, AAC),
            rates_hz=_MPEG_RATES_HZ,
            native_rate_hz=48_000,
        ),
        AudioFormat(
            "flac",
            "audio/flac",
            "flac",
            partial(CompressedEncoder, FLAC),
            streams_by_default=False,
        ),
        AudioFormat(
            "wav", "audio/wav", "s16le", WavEncoder, streams_by_default=False, is_cheap=True
        ),
        AudioFormat("pcm", "audio/pcm;rate={rate}", "s16le", PcmEncoder, is_cheap=True),
    )
}


def answer_rate_hz(
    fmt: AudioFormat, wanted_hz: int | None, default_hz: int | None, model_hz: int
) -> int:
    """Rate of an answer: the request's, else the server's, else the format's, else the model's.

    Args:
        fmt: the answer's format.
        wanted_hz: `sample_rate` of the request.
        default_hz: the server's default.
        model_hz: rate of the model's samples.

    Raises:
        InvalidRequestError: the format cannot carry the rate that the request asks for.
    """
    if wanted_hz is not None:
        if fmt.rates_hz is not None and wanted_hz not in fmt.rates_hz:
            rates = ", ".join(map(str, fmt.rates_hz))
            raise InvalidRequestError("sample_rate", wanted_hz, f"{rates} with {fmt.name}")
        return wanted_hz
    if default_hz is not None and (fmt.rates_hz is None or default_hz in fmt.rates_hz):
        return default_hz
    if fmt.native_rate_hz is not None:
        return fmt.native_rate_hz
    low, high = RATE_RANGE_HZ
    return min(max(model_hz, low), high)
