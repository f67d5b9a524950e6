"""The command line without an engine: bad input, where output goes, the description."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from voxnative.cli import main
from voxnative.terminal import claimed_streams

MISSING = "no/such/file.wav"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "either TEXT (- for standard input) or --file"),
        (["hi", "--file", "text.txt"], "either TEXT (- for standard input) or --file"),
        (["--file", "no/such/text.txt"], "field 'file': 'no/such/text.txt' is not valid"),
        ([""], "field 'text': '' is not valid; valid: text with at least one visible character"),
        ([" \n"], "text with at least one visible character"),
        (["...?!"], "field 'text': '...?!' is not valid; valid: text with something to say"),
        (["hi", "--description", "calm " * 200], "field 'text'"),
        (["hi", "--joint", "glue"], "field 'joint': 'glue' is not valid; valid: continue, ref"),
        (["hi", "--first-piece", "1"], "field 'first_piece': 1 is not valid; valid: a whole"),
        (["hi", "--max-silence", "-1"], "field 'max_silence_s': -1 is not valid"),
        (["hi", "--seed", "-1"], "field 'seed': -1 is not valid; valid: a whole number from 0"),
        (["hi", "--seed", "x"], "field 'seed': 'x' is not valid; valid: a whole number from 0"),
        (["hi", "--cfg", "11"], "field 'cfg': 11 is not valid; valid: 0.0 to 10.0"),
        (["hi", "--cfg", "nan"], "field 'cfg': nan is not valid; valid: 0.0 to 10.0"),
        (["hi", "--steps", "1"], "field 'timesteps': 1 is not valid; valid: a whole number from 2"),
        (["hi", "--temperature", "3"], "field 'temperature': 3 is not valid; valid: 0.0 to 2.0"),
        (["hi", "--max-seconds", "0"], "field 'max_seconds': 0 is not valid; valid: above 0"),
        (["hi", "--reference", MISSING], f"field 'reference': '{MISSING}' is not valid"),
        (["hi", "--prompt", MISSING, "--prompt-text", "a"], f"field 'prompt': '{MISSING}'"),
        (["hi", "--prompt-text", "a"], "both prompt and prompt_text, or neither"),
        (["hi", "--description", " "], "field 'description'"),
        (["hi", "--lora", "no/such/adapter"], "cannot read no/such/adapter/lora_config.json"),
        (["hi", "--model", "./no/such/model"], "no checkpoint directory no/such/model"),
        (["hi", "-o", "a.mp3"], "field 'output': 'a.mp3' is not valid"),
        (["hi", "-o", "no/such/folder/a.wav"], "a file in an existing folder"),
        (["hi", "--loud"], "unrecognized arguments: --loud"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: list[str],
    complaint: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_main(["say", *arguments]) == 2
    output = capfd.readouterr()
    assert output.out == ""
    assert output.err.startswith("voxnative")
    assert complaint in output.err
    assert output.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def run_main(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as stopped:  # argparse's way out
        return int(stopped.code)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [(b"", "one visible character"), (b"\xff\xfe\x00", "field 'text': <3 bytes> is not valid")],
)
def test_bad_text_on_standard_input(data: bytes, complaint: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "voxnative.cli", "say", "-"], input=data, capture_output=True
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert complaint in done.stderr.decode()


def test_a_folder_that_is_no_checkpoint(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_main(["say", "hi", "--model", str(tmp_path)]) == 2
    assert run_main(["info", str(tmp_path)]) == 2
    assert capfd.readouterr().err.count(f"cannot read {tmp_path}/config.json") == 2


def test_a_silent_reference_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import numpy as np
    import soundfile as sf

    path = tmp_path / "silent.wav"
    sf.write(path, np.zeros(16_000), 16_000)
    assert run_main(["say", "hi", "--reference", str(path)]) == 2
    assert "field 'reference'" in (complaint := capfd.readouterr().err)
    assert "not silent" in complaint


def test_info_describes_the_shipped_checkpoint(
    tiny_config, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_main(["info"]) == 0
    output = capfd.readouterr()
    assert output.err == ""
    rows = dict(line.split(maxsplit=1) for line in output.out.splitlines())
    assert rows["architecture"] == f"voxcpm2, {tiny_config.dtype}"
    n_parts = sum(float(first_word(output.out, part)) for part in PARTS)
    assert n_parts == pytest.approx(float(rows["parameters"].split()[0]), abs=0.05)
    assert rows["patch"].startswith(f"{tiny_config.patch_size} frames of {tiny_config.feat_dim}")


PARTS = [
    "  base LM",
    "  residual LM",
    "  local encoder",
    "  local DiT",
    "  audio VAE",
    "  projections and heads",
]


def first_word(output: str, start: str) -> str:
    (line,) = [line for line in output.splitlines() if line.startswith(start)]
    return line.removeprefix(start).split()[0]


def test_nothing_else_reaches_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    with claimed_streams(verbose=False) as streams:
        os.write(1, b"chatter\n")
        os.write(2, b"more chatter\n")
        streams.write(b"result\n")
        streams.err.write("progress\n")
        assert streams.log_tail() == "chatter\nmore chatter\n"
    os.write(1, b"afterwards\n")
    assert capfd.readouterr() == ("result\nafterwards\n", "progress\n")


def test_buffered_prints_of_libraries_are_no_result() -> None:
    code = "from voxnative.terminal import claimed_streams\n"
    code += "with claimed_streams(verbose=False) as s: print('chatter'); s.write(b'result')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (done.stdout, done.stderr) == (b"result", b"")


def run_shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        f"{sys.executable} -m voxnative.cli {command}", shell=True, capture_output=True, text=True
    )


def test_a_full_disk_is_one_line() -> None:
    done = run_shell("info > /dev/full")
    assert done.returncode == 1
    assert done.stderr == (
        "voxnative: a file could not be read or written: No space left on device\n"
    )


def test_a_closed_standard_input_is_one_line() -> None:
    done = run_shell("say - <&-")
    assert done.returncode == 2
    assert done.stderr.startswith("voxnative: field 'text': '-' is not valid")
    assert len(done.stderr.splitlines()) == 1


def test_the_log_level_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    assert run_main(["info"]) == 0
    assert "VLLM_LOGGING_LEVEL" not in os.environ


def test_a_verbose_command_shows_the_chatter(capfd: pytest.CaptureFixture[str]) -> None:
    with claimed_streams(verbose=True) as streams:
        os.write(1, b"chatter\n")
        assert streams.log_tail() == ""
    assert capfd.readouterr() == ("", "chatter\n")
