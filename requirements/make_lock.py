"""Resolve the package's extras into fully pinned locks: `make lock`.

pip's resolver runs dry (`--report`); nothing is installed. `cpu.lock` holds what the demo needs,
`test.lock` what the tests need beside it, `bench.lock` what the benchmark does (all of it is in
`test.lock` too), `demo.lock` what the demo page does. All are installed with
`pip install --no-deps -r`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

# vLLM names these three but does not need them for this model, and the builds that pip finds for
# them belong to another torch: beside the CPU build they break `import transformers`.
LEFT_OUT = {"torchaudio", "torchcodec", "torchvision"}

# Resemblyzer names both: `typing` is a part of Python, and webrtcvad has no wheels; the extra
# `bench` brings the same module as webrtcvad-wheels.
NOT_FOR_RESEMBLYZER = {"typing", "webrtcvad"}

# The reference implementation of the parity tests. Its dependencies (Gradio, ModelScope, librosa,
# torchaudio, ...) serve its own front ends; the networks need none of them. And the peer whose
# classes the benchmark's adapter is tested against, with what it imports: the rest of its needs is
# for CUDA (flash_attn), or there already.
WITHOUT_DEPENDENCIES = ["voxcpm==2.0.3", "nano-vllm-voxcpm==2.0.5", "xxhash==4.1.0"]

# Gradio limits pillow below the version that vLLM brings, which stays; the page draws no pictures.
TOO_NEW_FOR_GRADIO = {"pillow"}

TEST_TITLE = "Tests, beside cpu.lock: the package's extras `test` and `bench`."
HEADER = """\
# {title}
# Made by `make lock` (requirements/make_lock.py) for Python 3.11 on x86-64 Linux.
# Install: pip install --no-deps -r {install}
# Left out on purpose: torchaudio, torchcodec, torchvision. vLLM names them but does not need them
# for this model, and beside the CPU build of torch their usual builds break transformers.
"""


def main() -> None:
    runtime = resolve(".[cpu]")
    testing = resolve(".[cpu,test,bench]", constraints=runtime)
    bench = resolve(".[cpu,bench]", constraints=runtime | testing)
    write("cpu.lock", "Runtime on a CPU: the package with its extra `cpu`.", "cpu.lock", runtime)
    added = {name: pin for name, pin in testing.items() if name not in runtime}
    added |= {pin.split("==")[0]: pin for pin in WITHOUT_DEPENDENCIES}
    write("test.lock", TEST_TITLE, "test.lock", added)
    added = {name: pin for name, pin in bench.items() if name not in runtime}
    write("bench.lock", "The benchmark, beside cpu.lock: the extra `bench`.", "bench.lock", added)
    page = resolve(".[cpu,demo]", constraints=without(runtime, TOO_NEW_FOR_GRADIO))
    added = {name: pin for name, pin in page.items() if name not in runtime}
    write("demo.lock", "The page, beside cpu.lock: the extra `demo`.", "demo.lock", added)


def without(pins: dict[str, str], names: set[str]) -> dict[str, str]:
    return {name: pin for name, pin in pins.items() if name not in names}


def resolve(target: str, constraints: dict[str, str] | None = None) -> dict[str, str]:
    """Names and pins of everything that `target` needs, itself excluded."""
    with tempfile.TemporaryDirectory() as folder:
        report, fixed = Path(folder, "report.json"), Path(folder, "constraints.txt")
        fixed.write_text("\n".join((constraints or {}).values()))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--report", str(report), "-c", str(fixed), target]
        subprocess.run(command, cwd=HERE.parent, check=True)
        found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    pins = {item["name"].lower().replace("_", "-"): item["version"] for item in found}
    skipped = LEFT_OUT | NOT_FOR_RESEMBLYZER | {"voxnative"}
    return {name: f"{name}=={pins[name]}" for name in sorted(pins) if name not in skipped}


def write(name: str, title: str, install: str, pins: dict[str, str]) -> None:
    header = HEADER.format(title=title, install=f"requirements/{install}")
    (HERE / name).write_text(header + "\n".join(sorted(pins.values())) + "\n")
    print(f"requirements/{name}: {len(pins)} packages")


if __name__ == "__main__":
    main()
