"""`voxnative say --file`: a long text grows in its file, and is taken up again after a failure."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import soundfile as sf

from tests.e2e.test_cli import SAY, wait_for_engine
from tests.hearing import heard_words

pytestmark = [pytest.mark.full_model]

TEXT = """The weather is very nice today, and we will go for a walk in the park.

They bought some bread and milk, because there was nothing else to eat in the house.

My sister looked at the river for a long time, and then she came back without a word.
"""


def say(chapter: Path, output: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [
        *SAY,
        "--file",
        chapter,
        "-o",
        output,
        "--seed",
        "1",
        "--joint",
        "separate",
        *options,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_long_file_fails_in_the_middle_and_goes_on(tmp_path: Path) -> None:
    chapter, output = tmp_path / "chapter.txt", tmp_path / "chapter.wav"
    chapter.write_text(TEXT)
    process = say(chapter, output)
    engine = wait_for_engine(process)
    wait_for_audio(tmp_path, process)
    for pid in engine:
        os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, b"")
    failure = err.decode().splitlines()[-1]
    found = re.search(
        rf"^voxnative: {tmp_path}/chapter\.part\.wav holds everything before; "
        r"--first-piece (\d) --seed 1 goes on$",
        err.decode(),
        re.MULTILINE,
    )
    assert found, err.decode()
    index = found[1]
    assert failure.startswith(f"voxnative: piece {index} of 5 (characters ")
    assert not output.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"chapter.txt", "chapter.part.wav"}

    rest = say(chapter, output, "--first-piece", index)
    out, err = rest.communicate(timeout=240)
    assert rest.returncode == 0, err.decode()
    assert re.search(r"s of speech in 5 pieces, first audio after", out.decode())
    heard = set()
    for path in (tmp_path / "chapter.part.wav", output):
        samples, rate_hz = sf.read(path, dtype="float32")
        heard |= heard_words(samples, rate_hz)
    assert {"weather", "walk", "bread", "milk", "sister"} <= heard


def wait_for_audio(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the partial file holds more than its header."""
    while True:
        assert process.poll() is None, process.communicate()
        if any(path.stat().st_size > 1000 for path in folder.glob(".*.partial")):
            return
        time.sleep(0.2)
