"""`voxnative say` as a user runs it: file, words, standard output, failure, Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import soundfile as sf

from tests.hearing import heard_words

SAY = [sys.executable, "-m", "voxnative.cli", "say"]
TEXT = "the weather is very nice today."
FIGURES = r"(\d+\.\d\d) s of speech, first audio after \d+\.\d\d s, RTF \d+\.\d\d, seed 1"


@dataclass
class Spoken:
    """A finished `voxnative say TEXT -o PATH --seed 1`."""

    path: Path
    done: subprocess.CompletedProcess[bytes]


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    path = tmp_path_factory.mktemp("cli") / "spoken.wav"
    path.write_bytes(b"an older file")
    done = subprocess.run([*SAY, TEXT, "-o", path, "--seed", "1"], capture_output=True)
    return Spoken(path, done)


def test_the_file_holds_the_words(spoken: Spoken) -> None:
    assert spoken.done.returncode == 0, spoken.done.stderr.decode()
    samples, rate_hz = sf.read(spoken.path, dtype="float32")
    assert rate_hz == 16_000
    assert {"weather", "very", "nice", "today"} <= heard_words(samples, rate_hz)


def test_output_is_the_closing_line_and_the_progress(spoken: Spoken) -> None:
    closing = re.fullmatch(f"{spoken.path}: {FIGURES}\n", spoken.done.stdout.decode())
    assert closing is not None, spoken.done.stdout
    assert float(closing[1]) == pytest.approx(sf.info(spoken.path).duration, abs=0.005)
    assert re.fullmatch(r"\d+\.\d s of speech, RTF \d+\.\d\d\n", spoken.done.stderr.decode())


def test_standard_input_to_standard_output(spoken: Spoken) -> None:
    command = [*SAY, "-", "-o", "-", "--seed", "1"]
    done = subprocess.run(command, input=f"{TEXT}\n".encode(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == spoken.path.read_bytes()  # one WAV file and nothing else
    assert re.search(FIGURES, done.stderr.decode())


def test_an_engine_that_dies_is_code_1(tmp_path: Path) -> None:
    process = start_say(tmp_path / "spoken.wav")
    for pid in wait_for_engine(process):
        os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, b"")
    assert "voxnative: the engine did not start" in err.decode().splitlines()[-1]
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
