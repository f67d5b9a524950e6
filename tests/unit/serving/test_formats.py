"""Streaming encoders: pieces come early, lengths are right, and whole equals streamed."""

from __future__ import annotations

import io
import struct

import av
import numpy as np
import pytest
import soundfile

from voxnative.errors import InvalidRequestError
from voxnative.serving.formats.base import AudioFormat
from voxnative.serving.formats.compressed import AAC, FLAC, MP3
from voxnative.serving.formats.registry import FORMATS, answer_rate_hz
from voxnative.serving.formats.wav import wav_header

CHUNK_S = 0.16
CONTAINERS = {"mp3": "mp3", "opus": "ogg", "aac": "aac", "flac": "flac", "wav": "wav"}


def tone(n_samples: int, rate_hz: int) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * 300 * np.arange(n_samples) / rate_hz)).astype(np.float32)


def pieces(fmt: AudioFormat, samples: np.ndarray, rate_hz: int, *, whole: bool) -> list[bytes]:
    """Bytes of the header, of each chunk, and of the end."""
    encoder = fmt.encoder(rate_hz, whole)
    step = round(CHUNK_S * rate_hz)
    chunks = [samples[at : at + step] for at in range(0, len(samples), step)]
    return [encoder.start(), *(encoder.feed(chunk) for chunk in chunks), encoder.finish()]


def encoded(fmt: AudioFormat, samples: np.ndarray, rate_hz: int, *, whole: bool) -> bytes:
    return b"".join(pieces(fmt, samples, rate_hz, whole=whole))


def decoded(body: bytes, name: str) -> tuple[np.ndarray, int]:
    with av.open(io.BytesIO(body), format=CONTAINERS[name]) as container:
        to_float = av.AudioResampler(format="fltp")
        frames = [f for frame in container.decode(audio=0) for f in to_float.resample(frame)]
        rate_hz = container.streams.audio[0].rate
    return np.concatenate([frame.to_ndarray()[0] for frame in frames]), rate_hz


@pytest.mark.parametrize("name", ["mp3", "opus", "aac"])
@pytest.mark.parametrize("n_extra", [0, 1, 575, 777, 1023, 1151])
def test_lengths_are_right_within_a_frame(name: str, n_extra: int) -> None:
    n_samples = 48_000 + n_extra
    body = encoded(FORMATS[name], tone(n_samples, 48_000), 48_000, whole=False)
    samples, rate_hz = decoded(body, name)
    excess_s = len(samples) / rate_hz - n_samples / 48_000
    assert -1e-9 <= excess_s < 0.030


@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 44_100])
def test_lower_rates_too(rate_hz: int) -> None:
    n_samples = 2 * rate_hz + 333
    for name, frame in (("mp3", 1152 if rate_hz >= 32_000 else 576), ("aac", 1024)):
        body = encoded(FORMATS[name], tone(n_samples, rate_hz), rate_hz, whole=False)
        samples, found_hz = decoded(body, name)
        assert found_hz == rate_hz
        assert 0 <= len(samples) - n_samples < frame + 0.007 * rate_hz


@pytest.mark.parametrize("name", ["flac", "wav"])
@pytest.mark.parametrize("whole", [False, True])
def test_lossless_formats_hold_the_very_samples(name: str, whole: bool) -> None:
    samples = tone(30_001, 16_000)
    found, rate_hz = decoded(encoded(FORMATS[name], samples, 16_000, whole=whole), name)
    assert rate_hz == 16_000
    assert len(found) == len(samples)
    assert np.abs(found - samples).max() < 1 / 32_000


@pytest.mark.parametrize("name", ["mp3", "opus", "aac", "pcm"])
def test_whole_is_streamed_byte_for_byte(name: str) -> None:
    samples = tone(30_001, 48_000)
    streamed = encoded(FORMATS[name], samples, 48_000, whole=False)
    assert streamed == encoded(FORMATS[name], samples, 48_000, whole=True)


@pytest.mark.parametrize("name", list(FORMATS))
def test_each_chunk_gives_bytes_at_once(name: str) -> None:
    _, *chunks, _ = pieces(FORMATS[name], tone(6 * 7_680, 48_000), 48_000, whole=False)
    assert all(chunks)


def test_the_speech_is_where_it_was() -> None:
    """A click in the middle comes out at its place: no packet is lost, none comes twice."""
    samples = np.zeros(48_000, np.float32)
    samples[24_000:24_048] = 0.9
    for codec, name in ((MP3, "mp3"), (AAC, "aac")):
        _, n_lead = codec.priming(48_000)
        lead_s = codec.lead_s
        found, _ = decoded(encoded(FORMATS[name], samples, 48_000, whole=False), name)
        at = int(np.abs(found).argmax())
        assert abs(at - 24_024 - lead_s * 48_000) < 100, (name, n_lead)


def test_whole_headers_hold_the_length() -> None:
    samples = tone(16_123, 16_000)
    for name in ("wav", "flac"):
        body = encoded(FORMATS[name], samples, 16_000, whole=True)
        assert soundfile.info(io.BytesIO(body)).frames == len(samples)


def test_a_streamed_wav_header_says_unknown() -> None:
    header = wav_header(24_000, None)
    assert len(header) == 44
    assert struct.unpack_from("<I", header, 4) == struct.unpack_from("<I", header, 40)
    assert header[40:] == b"\xff" * 4


def test_priming() -> None:
    assert MP3.priming(48_000) == (1, 1152 - 1105 + 144)
    assert MP3.priming(24_000) == (2, 1152 - 1105 + 72)
    assert AAC.priming(48_000) == (1, 288)
    assert FLAC.priming(48_000) == (0, 0)


def test_samples_beyond_full_scale_are_clipped() -> None:
    body = FORMATS["pcm"].encoder(16_000, False).feed(np.array([2.0, -2.0, 0.0], np.float32))
    assert np.frombuffer(body, "<i2").tolist() == [32767, -32767, 0]


@pytest.mark.parametrize(
    ("name", "wanted", "default", "expected"),
    [
        ("pcm", None, None, 16_000),
        ("pcm", 24_000, None, 24_000),
        ("pcm", None, 24_000, 24_000),
        ("mp3", None, None, 48_000),
        ("mp3", 24_000, 44_100, 24_000),
        ("opus", None, 44_100, 48_000),  # Opus has no 44.1 kHz
        ("opus", None, 24_000, 24_000),
    ],
)
def test_the_rate_of_an_answer(
    name: str, wanted: int | None, default: int | None, expected: int
) -> None:
    assert answer_rate_hz(FORMATS[name], wanted, default, 16_000) == expected


def test_a_rate_that_the_format_lacks_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"field 'sample_rate'.*48000 with opus"):
        answer_rate_hz(FORMATS["opus"], 44_100, None, 16_000)
