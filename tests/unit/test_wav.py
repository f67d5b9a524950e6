"""Files and bytes hold the samples; a path that cannot be written is refused beforehand."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from voxnative.errors import ParameterError
from voxnative.wav import check_output, save_audio, wav_bytes

STEP = 1 / 2**15  # 16 bit


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "A.WAV"])
def test_a_saved_file_holds_the_samples(tmp_path: Path, name: str, voice_16k: np.ndarray) -> None:
    save_audio(tmp_path / name, voice_16k, 16_000)
    samples, rate_hz = sf.read(tmp_path / name, dtype="float32")
    assert rate_hz == 16_000
    np.testing.assert_allclose(samples, voice_16k, atol=STEP)
    assert sf.info(tmp_path / name).subtype == "PCM_16"


def test_wav_bytes_are_one_whole_file(voice_16k: np.ndarray) -> None:
    data = wav_bytes(voice_16k, 48_000)
    assert data[:4] == b"RIFF"
    assert int.from_bytes(data[4:8], "little") == len(data) - 8  # the true size, no placeholder
    samples, rate_hz = sf.read(io.BytesIO(data), dtype="float32")
    assert (rate_hz, len(samples)) == (48_000, len(voice_16k))


def test_samples_beyond_full_scale_clip() -> None:
    samples, _ = sf.read(io.BytesIO(wav_bytes(np.array([2.0, -2.0], np.float32), 16_000)))
    np.testing.assert_allclose(samples, [1, -1], atol=STEP)


def test_an_existing_file_is_replaced_whole(tmp_path: Path, voice_16k: np.ndarray) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"old")
    save_audio(path, voice_16k, 16_000)
    assert len(sf.read(path)[0]) == len(voice_16k)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="dtype"):
        save_audio(path, np.array(["no", "audio"]), 16_000)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a", "a.mp3", "a.wav.txt"])
def test_an_unknown_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ParameterError, match=r"ending in \.wav or \.flac"):
        check_output(tmp_path / name)


def test_a_folder_in_the_way_or_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.wav").mkdir()
    with pytest.raises(ParameterError, match="not a folder"):
        check_output(tmp_path / "folder.wav")
    with pytest.raises(ParameterError, match="in an existing folder"):
        check_output(tmp_path / "missing" / "a.wav")
