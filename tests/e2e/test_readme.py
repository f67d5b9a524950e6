"""The README's commands do what it says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

import pytest
import soundfile as sf
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

import voxnative
from examples.offline_inference import end2end
from tests.engines import RecordingEngine
from voxnative.bench import command as bench
from voxnative.cli import _parser
from voxnative.serving import demo, launcher


@pytest.fixture(scope="module")
def readme(repo: Path) -> str:
    return (repo / "README.md").read_text()


def blocks(readme: str, language: str = "") -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    return [block for given, block in found if given == language]


def commands(readme: str, program: str) -> list[list[str]]:
    """The README's calls of a program, without comments and redirections."""
    lines = [line for block in blocks(readme) for line in block.splitlines()]
    calls = [line for line in lines if line.startswith(f"{program} ")]
    return [shlex.split(re.sub(r"\s+>.*", "", call), comments=True) for call in calls]


def run_make(repo: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """make as a user calls it, although these tests themselves run inside `make test`."""
    outer = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "TEXT", "OUT")
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    return subprocess.run(
        ["make", *arguments], cwd=repo, capture_output=True, text=True, env=environment
    )


def make(repo: Path, *arguments: str) -> str:
    done = run_make(repo, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_two_commands_come_first(readme: str) -> None:
    assert commands(readme, "make")[:2] == [["make", "demo"], ["make", "test"]]


def test_make_demo_speaks(readme: str, repo: Path) -> None:
    path = repo / "out" / "demo.wav"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"an older file")
    output = make(repo, *commands(readme, "make")[0][1:])
    figures = r"(\d+\.\d\d) s of speech, first audio after \d+\.\d\d s, RTF \d+\.\d\d"
    printed = re.search(rf"^out/demo\.wav: {figures}", output, re.MULTILINE)
    assert printed is not None, output
    assert float(printed[1]) == pytest.approx(sf.info(path).duration, abs=0.005)


def test_make_test_runs_the_whole_suite_and_ci_calls_exactly_that(repo: Path) -> None:
    # This very test runs inside `make test`, so its recipe is only read.
    recipe = make(repo, "-n", "test").splitlines()
    assert recipe[-1] == ".venv/bin/python -m pytest -n 2"
    assert (repo / ".ci/run").read_text().splitlines()[-1] == "exec make test"


def test_make_say_needs_a_text(repo: Path) -> None:
    done = run_make(repo, "say")
    assert done.returncode == 2
    assert "give the text, as in: make say TEXT=" in done.stderr
    (say,) = [call for call in commands((repo / "README.md").read_text(), "make") if "say" in call]
    recipe = make(repo, "-n", *say[1:])
    assert recipe.splitlines()[-1] == '.venv/bin/voxnative say -o "$OUT" -- "$TEXT"'


def test_every_call_of_voxnative_parses(readme: str, repo: Path) -> None:
    calls = commands(readme, "voxnative")
    assert {"say", "info", "serve", "demo", "bench"} <= {call[1] for call in calls}
    for _, command, *arguments in calls:
        if command == "serve":
            _, deploy, flags = launcher._split(arguments)
            assert deploy is None or (repo / deploy).is_file()
            make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
        elif command == "demo":
            demo._parser().parse_args(arguments)
        elif command == "bench":
            assert (repo / bench._parser().parse_args(arguments).matrix).is_file()
        else:
            assert _parser().parse_args([command, *arguments]).run.__name__ == command


def test_the_python_example_runs(
    readme: str,
    speaking: RecordingEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """In this process, on the tests' own engine of the default checkpoint."""
    (script,) = blocks(readme, "python")
    monkeypatch.setattr(voxnative, "VoxNative", lambda: nullcontext(speaking.api))
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "README.md", "exec"), {"__name__": "__main__"})
    assert sf.info(tmp_path / "morning.wav").duration > 0.3
    assert re.search(r"^0 \(\d+,\) 16000$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.full_model
def test_the_python_example_is_a_script(readme: str, tmp_path: Path) -> None:
    (script,) = blocks(readme, "python")
    (tmp_path / "example.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert sf.info(tmp_path / "morning.wav").duration > 0.3
    assert re.search(r"^0 \(\d+,\) 16000$", done.stdout, re.MULTILINE)  # the first chunk


def test_the_paths_that_documents_name_exist(repo: Path) -> None:
    for name in ("README.md", "CONTRIBUTING.md", "examples/README.md"):
        text = (repo / name).read_text()
        links = [t for t in re.findall(r"\]\(([^)#]+)\)", text) if not t.startswith("http")]
        missing = [link for link in links if not ((repo / name).parent / link).exists()]
        assert missing == [], name


@pytest.mark.parametrize("way", end2end.WAYS)
def test_the_offline_example_speaks(
    way: str, speaking: RecordingEngine, voice_16k, tmp_path: Path
) -> None:
    recording = tmp_path / "voice.flac"
    sf.write(recording, voice_16k, 16_000)
    chapter = tmp_path / "chapter.txt"
    chapter.write_text("good morning.\n\n* * *\n\n" + "it is a very nice day today. " * 3)
    args = Namespace(
        text="good morning.",
        recording=recording,
        said="hello there, ",
        file=chapter,
        seed=1,
        out=tmp_path,
    )
    end2end.WAYS[way](speaking.api, args)
    written = sorted(tmp_path.glob("*.wav"))
    assert len(written) == (len(end2end.BATCH) if way == "batch" else 1)
    assert all(sf.info(path).duration >= 0.16 for path in written)
