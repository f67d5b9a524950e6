"""Recordings of every kind become mono float32 at one rate; every bad one is named."""

from __future__ import annotations

import io
import os
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile as sf

from voxnative.audio_input import load_audio
from voxnative.errors import AudioInputError


def tone(rate_hz: int, seconds: float = 0.5, pitch_hz: float = 440.0) -> np.ndarray:
    t = np.arange(int(seconds * rate_hz)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * pitch_hz * t)).astype(np.float32)


def load(source: object, **options: object) -> np.ndarray:
    arguments = {"field": "reference", "sample_rate_hz": 16_000, "max_s": 5.0} | options
    return load_audio(source, **arguments)


def encode(samples: np.ndarray, rate_hz: int, **options: str) -> bytes:
    buffer = io.BytesIO()
    sf.write(buffer, samples, rate_hz, **options)
    return buffer.getvalue()


def encode_m4a(samples: np.ndarray, rate_hz: int) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=rate_hz, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.sample_rate = rate_hz
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return buffer.getvalue()


def pitch_hz(samples: np.ndarray, rate_hz: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax() * rate_hz / len(samples))


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("container", ["WAV", "FLAC", "OGG", "MP3"])
def test_files_of_any_rate_and_format(tmp_path: Path, rate_hz: int, container: str) -> None:
    path = tmp_path / f"voice.{container.lower()}"
    sf.write(path, tone(rate_hz), rate_hz, format=container)
    samples = load(path)
    assert samples.dtype == np.float32
    assert samples.ndim == 1
    assert len(samples) == pytest.approx(8_000, abs=1_200 if container == "MP3" else 2)
    assert pitch_hz(samples, 16_000) == pytest.approx(440, abs=4)
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.05)


def test_what_soundfile_cannot_read_goes_through_pyav() -> None:
    samples = load(encode_m4a(tone(44_100), 44_100))
    assert len(samples) == pytest.approx(8_000, abs=800)  # AAC pads to its own frames
    assert pitch_hz(samples, 16_000) == pytest.approx(440, abs=4)


def test_path_string_bytes_and_array_agree(tmp_path: Path) -> None:
    wave = tone(16_000)
    path = tmp_path / "voice.wav"
    path.write_bytes(encode(wave, 16_000, format="WAV", subtype="FLOAT"))
    for source in (path, str(path), path.read_bytes(), (wave, 16_000), (wave, np.int64(16_000))):
        np.testing.assert_array_equal(load(source), wave)
    np.testing.assert_array_equal(load(wave, array_rate_hz=16_000), wave)


@pytest.mark.parametrize("transposed", [False, True])
def test_stereo_is_averaged(transposed: bool) -> None:
    left, right = tone(16_000), tone(16_000, pitch_hz=220)
    stereo = np.stack([left, right], axis=1)
    mono = load((stereo.T if transposed else stereo, 16_000))
    np.testing.assert_allclose(mono, (left + right) / 2, atol=1e-7)


def test_stereo_file_is_averaged() -> None:
    left, right = tone(16_000), tone(16_000, pitch_hz=220)
    stereo = encode(np.stack([left, right], axis=1), 16_000, format="WAV", subtype="FLOAT")
    np.testing.assert_allclose(load(stereo), (left + right) / 2, atol=1e-7)


@pytest.mark.parametrize(("dtype", "scale"), [("int16", 2**15), ("int32", 2**31)])
def test_integer_samples_are_scaled(dtype: str, scale: int) -> None:
    wave = tone(16_000)
    np.testing.assert_allclose(load(((wave * scale).astype(dtype), 16_000)), wave, atol=1e-4)


def test_unsigned_samples_are_centred() -> None:
    wave = tone(16_000)
    np.testing.assert_allclose(load(((wave * 128 + 128).astype(np.uint8), 16_000)), wave, atol=1e-2)


@pytest.mark.parametrize(
    ("source", "valid"),
    [
        ("no/such/file.wav", "an existing audio file"),
        (Path("no/such/file.wav"), "an existing audio file"),
        ("https://example.com/voice.wav", "an existing audio file"),
        ("x" * 5_000, "a file that can be read (File name too long)"),
        (b"", "a recording that is not empty"),
        (b"this is no audio at all" * 50, "a readable audio recording"),
        (encode(np.zeros(0, np.float32), 16_000, format="WAV"), "a recording that is not empty"),
        ((np.zeros(0, np.float32), 16_000), "a recording that is not empty"),
        ((np.zeros(16_000, np.float32), 16_000), "not silent"),
        (encode(np.zeros(16_000, np.float32), 16_000, format="FLAC"), "not silent"),
        ((np.full(9, np.nan, np.float32), 16_000), "finite samples"),
        ((np.full(9, np.inf, np.float32), 16_000), "finite samples"),
        ((tone(16_000) * 20_000, 16_000), "float samples from -1 to 1"),
        (tone(16_000), "an array with its rate"),
        ((tone(16_000), 0), "a rate from 1000 to 768000 Hz"),
        ((tone(16_000), 16_000.5), "a rate from 1000 to 768000 Hz"),
        ((np.ones((2, 2, 2), np.float32), 16_000), "an array of shape"),
        ((np.ones((99, 99), np.float32), 16_000), "at most 16 channels"),
        ((np.ones(99, np.complex64), 16_000), "float, uint8, int16, int32 samples"),
        (([0.1, 0.2], 16_000), "an array of shape"),
        (7, "a path, encoded bytes, an array or (array, rate)"),
        (None, "a path, encoded bytes, an array or (array, rate)"),
        ((tone(16_000, 5.1), 16_000), "at most 5 seconds"),
        (encode(tone(8_000, 5.1), 8_000, format="WAV"), "at most 5 seconds"),
        (encode_m4a(tone(44_100, 6.0), 44_100), "at most 5 seconds"),
    ],
)
def test_every_bad_recording_is_named(source: object, valid: str) -> None:
    with pytest.raises(AudioInputError) as caught:
        load(source)
    assert caught.value.field == "reference"
    assert valid in caught.value.valid
    assert len(str(caught.value)) < 300  # no audio is dumped


def test_a_script_cannot_make_ffmpeg_open_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sf.write(tmp_path / "other.mp3", tone(16_000), 16_000)
    monkeypatch.chdir(tmp_path)
    script = b"ffconcat version 1.0\nfile other.mp3\n"
    with av.open(io.BytesIO(script)) as container:  # FFmpeg alone would follow it
        assert container.format.name == "concat"
    with pytest.raises(AudioInputError, match="a readable audio recording"):
        load(script)


def test_a_film_without_sound_is_empty() -> None:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    with pytest.raises(AudioInputError, match="not empty"):
        load(buffer.getvalue())


def test_a_folder_and_an_empty_file_are_no_recordings(tmp_path: Path) -> None:
    with pytest.raises(AudioInputError, match="an existing audio file"):
        load(tmp_path)
    (tmp_path / "empty.wav").touch()
    with pytest.raises(AudioInputError, match="not empty"):
        load(tmp_path / "empty.wav")


def test_exactly_the_limit_is_accepted() -> None:
    assert len(load((tone(16_000, 5.0), 16_000))) == 80_000


def test_no_file_stays_open(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.wav", tmp_path / "bad.wav"
    sf.write(good, tone(16_000), 16_000)
    bad.write_bytes(b"RIFF but not really a wave file")
    for _ in range(3):
        load(good)
        with pytest.raises(AudioInputError):
            load(bad)
    open_files = {os.readlink(f"/proc/self/fd/{fd}") for fd in _open_fds()}
    assert not {str(good), str(bad)} & open_files


def _open_fds() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
