"""Files and bytes hold the samples; a path that cannot be written is refused beforehand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from voxnative.errors import ParameterError
from voxnative.wav import AudioFile, check_output, save_audio

STEP = 1 / 2**15  # 16 bit


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "A.WAV"])
def test_a_saved_file_holds_the_samples(tmp_path: Path, name: str, voice_16k: np.ndarray) -> None:
    save_audio(tmp_path / name, voice_16k, 16_000)
    samples, rate_hz = sf.read(tmp_path / name, dtype="float32")
    assert rate_hz == 16_000
    np.testing.assert_allclose(samples, voice_16k, atol=STEP)
    assert sf.info(tmp_path / name).subtype == "PCM_16"


def test_a_file_has_its_true_size(tmp_path: Path, voice_16k: np.ndarray) -> None:
    data = save_audio(tmp_path / "a.wav", voice_16k, 48_000).read_bytes()
    assert data[:4] == b"RIFF"
    assert int.from_bytes(data[4:8], "little") == len(data) - 8  # the true size, no placeholder
    assert len(data) == 44 + 2 * len(voice_16k)


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_blocks_make_the_same_file(tmp_path: Path, name: str, voice_16k: np.ndarray) -> None:
    whole = save_audio(tmp_path / f"whole_{name}", voice_16k, 16_000)
    with AudioFile(tmp_path / name, 16_000) as file:
        for block in np.array_split(voice_16k, 7):
            file.write(block)
        assert not (tmp_path / name).exists()
        file.complete()
    assert (tmp_path / name).read_bytes() == whole.read_bytes()


def test_what_is_not_completed_is_discarded(tmp_path: Path, voice_16k: np.ndarray) -> None:
    with AudioFile(tmp_path / "a.wav", 16_000) as file:
        file.write(voice_16k)
    assert list(tmp_path.iterdir()) == []
    with AudioFile(tmp_path / "a.wav", 16_000) as file:
        file.write(voice_16k)
        file.complete(tmp_path / "a.part.wav")
    assert [path.name for path in tmp_path.iterdir()] == ["a.part.wav"]


def test_a_full_disk_is_the_system_s_error(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk."""
    code = (
        "import resource, signal, sys, numpy\n"
        "from voxnative.wav import AudioFile\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n"
        "with AudioFile(sys.argv[1], 16_000) as file:\n"
        "    try:\n"
        "        for _ in range(20): file.write(numpy.ones(2560, numpy.float32))\n"
        "    except OSError as error: print(error.strerror)\n"
    )
    path = tmp_path / "a.wav"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.stdout == f"writing {path} failed\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_samples_beyond_full_scale_clip(tmp_path: Path) -> None:
    path = save_audio(tmp_path / "a.wav", np.array([2.0, -2.0], np.float32), 16_000)
    samples, _ = sf.read(path)
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
