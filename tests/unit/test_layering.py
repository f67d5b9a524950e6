"""Imports point one way: each layer is imported in a fresh process that tells what came along."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import voxnative

# What every layer may not drag in, and the modules that belong to it.
LAYERS: dict[str, tuple[set[str], set[str]]] = {
    "request": (
        {"torch", "vllm", "transformers", "diffusers"},
        {
            "voxnative",
            "voxnative.audio_input",
            "voxnative.cli",
            "voxnative.config",
            "voxnative.config_section",
            "voxnative.errors",
            "voxnative.params",
            "voxnative.plugin",
            "voxnative.prompt",
            "voxnative.result",
            "voxnative.speech_request",
            "voxnative.terminal",
            "voxnative.tokenizer",
            "voxnative.units",
            "voxnative.wav",
        },
    ),
    "networks": (
        {"vllm", "transformers"},
        {
            "voxnative.async_api",
            "voxnative.checkpoint",
            "voxnative.decode_step",
            "voxnative.info",
            "voxnative.nn",
            "voxnative.offline",
            "voxnative.request_state",
            "voxnative.weight_files",
        },
    ),
    "engine": (set(), {"voxnative.engine"}),
}

PROBE = """
import importlib, sys
forbidden, modules = set(sys.argv[1].split(",")), sys.argv[2].split(",")
for module in modules:
    importlib.import_module(module)
    dragged = forbidden & sys.modules.keys()
    if dragged:
        sys.exit(f"{module} drags in {', '.join(sorted(dragged))}")
print(len(modules))
"""


def members(layer: str) -> list[str]:
    """All modules of a layer, packages walked."""
    _, names = LAYERS[layer]
    walked = pkgutil.walk_packages(voxnative.__path__, "voxnative.")
    within = [
        m.name
        for m in walked
        if any(m.name.startswith(f"{name}.") for name in names - {"voxnative"})
    ]
    return sorted(names | set(within))


@pytest.mark.parametrize("layer", ["request", "networks"])
def test_a_layer_drags_in_nothing_heavier(layer: str) -> None:
    forbidden, _ = LAYERS[layer]
    arguments = [",".join(sorted(forbidden)), ",".join(members(layer))]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(members(layer))


def test_every_module_belongs_to_one_layer() -> None:
    found = {"voxnative"} | {
        f"voxnative.{m.name}" for m in pkgutil.iter_modules(voxnative.__path__)
    }
    listed = [name for _, names in LAYERS.values() for name in names]
    assert sorted(listed) == sorted(found)


def test_importing_the_package_imports_none_of_its_modules() -> None:
    code = "import sys, voxnative; print([m for m in sys.modules if m.startswith('voxnative.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_listed_and_resolve() -> None:
    assert sorted(voxnative.__all__) == sorted({*voxnative._PUBLIC_NAMES, "__version__"})
    assert dir(voxnative) == sorted(voxnative.__all__)
    for name in voxnative._PUBLIC_NAMES:
        assert getattr(voxnative, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'voxnative' has no attribute 'Voice'"):
        voxnative.Voice  # noqa: B018
