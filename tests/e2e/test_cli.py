"""`voxnative say` as a user runs it: words, standard streams, failure, Ctrl-C.

`make demo` (test_readme.py) is the same command with a file to write.
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import soundfile as sf

from tests.hearing import heard_words

SAY = [sys.executable, "-m", "voxnative.cli", "say"]
TEXT = "the weather is very nice today."
HEADER_BYTES = 44
FIGURES = r"(\d+\.\d\d) s of speech, first audio after \d+\.\d\d s, RTF \d+\.\d\d, seed 1"


@pytest.fixture(scope="module")
def spoken() -> subprocess.CompletedProcess[bytes]:
    """A text from standard input, spoken to standard output."""
    command = [*SAY, "-", "-o", "-", "--seed", "1"]
    return subprocess.run(command, input=f"{TEXT}\n".encode(), capture_output=True)


def test_standard_output_is_one_wav_file_and_nothing_else(
    spoken: subprocess.CompletedProcess[bytes],
) -> None:
    assert spoken.returncode == 0, spoken.stderr.decode()
    samples, rate_hz = sf.read(io.BytesIO(spoken.stdout), dtype="float32")
    assert rate_hz == 16_000
    assert len(spoken.stdout) == HEADER_BYTES + 2 * len(samples)
    assert {"weather", "very", "nice", "today"} <= heard_words(samples, rate_hz)


def test_standard_error_is_the_progress_and_the_closing_line(
    spoken: subprocess.CompletedProcess[bytes],
) -> None:
    lines = re.fullmatch(
        rf"\d+\.\d s of speech, RTF \d+\.\d\d\n{FIGURES}\n", spoken.stderr.decode()
    )
    assert lines is not None, spoken.stderr.decode()
    n_samples = (len(spoken.stdout) - HEADER_BYTES) // 2
    assert float(lines[1]) == pytest.approx(n_samples / 16_000, abs=0.005)


@pytest.mark.full_model
def test_an_engine_that_dies_is_code_1(tmp_path: Path) -> None:
    process = start_say(tmp_path / "spoken.wav")
    for pid in wait_for_engine(process):
        os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, b"")
    assert err.decode().splitlines()[-1].startswith("voxnative: the engine did not start")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_command_and_its_engine(tmp_path: Path) -> None:
    process = start_say(tmp_path / "spoken.wav")
    engine = wait_for_engine(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, b"")
    assert err.decode().splitlines()[-1] == "voxnative: interrupted"
    assert list(tmp_path.iterdir()) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in engine)


def start_say(output: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*SAY, TEXT, "-o", output],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def wait_for_engine(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes that a command started for its engine, once there are any."""
    while True:
        assert process.poll() is None, process.communicate()
        tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
        children = [int(pid) for path in tasks for pid in path.read_text().split()]
        engine = [pid for pid in children if b"spawn_main" in command_line(pid)]
        if engine:
            return engine
        time.sleep(0.2)


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
