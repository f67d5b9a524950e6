"""Imports point one way: each layer is imported in a fresh process that tells what came along."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import voxnative

# What each layer may not drag in.
FORBIDDEN = {
    "request": {"torch", "vllm", "transformers", "diffusers"},
    "networks": {"vllm", "transformers"},
    "serving": {
        "voxnative.decode_step",
        "voxnative.engine",
        "voxnative.nn",
        "voxnative.request_state",
    },
}

# Modules and packages of each layer; whatever is not listed belongs to the lightest, "request".
LISTED = {
    "networks": {
        "voxnative.async_api",
        "voxnative.checkpoint",
        "voxnative.checkpoint_shapes",
        "voxnative.decode_step",
        "voxnative.info",
        "voxnative.lanes",
        "voxnative.lora_file",
        "voxnative.nn",
        "voxnative.offline",
        "voxnative.request_state",
        "voxnative.live_request",
        "voxnative.side_path",
        "voxnative.side_path_graph",
        "voxnative.slot_state",
        "voxnative.weight_files",
    },
    "serving": {"voxnative.serving"},
    "engine": {"voxnative.engine"},
}

PROBE = """
import importlib, sys
forbidden, modules = set(sys.argv[1].split(",")), sys.argv[2].split(",")
for module in modules:
    importlib.import_module(module)
    dragged = forbidden & sys.modules.keys()
    if dragged:
        sys.exit(f"{module} drags in {', '.join(sorted(dragged))}")
if "vllm" in sys.modules:  # vLLM registers the plugin in each of its processes
    importlib.import_module("voxnative.plugin").register()
    engine = ("voxnative.engine.model", "voxnative.engine.runner")
    heavy = ("voxnative.nn", "voxnative.decode", *engine)
    if dragged := [module for module in sys.modules if module.startswith(heavy)]:
        sys.exit(f"registering drags in {', '.join(dragged)}")
print(len(modules), "vllm" in sys.modules)
"""


def layer_of(module: str) -> str:
    top = ".".join(module.split(".")[:2])
    return next((layer for layer, names in LISTED.items() if top in names), "request")


def members(layer: str) -> list[str]:
    """All modules of a layer, packages walked."""
    found = [
        "voxnative",
        *(m.name for m in pkgutil.walk_packages(voxnative.__path__, "voxnative.")),
    ]
    return sorted(module for module in found if layer_of(module) == layer)


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_a_layer_drags_in_nothing_heavier(layer: str) -> None:
    modules = members(layer)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, ",".join(FORBIDDEN[layer]), ",".join(modules)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(modules)), str(layer == "serving")]


def test_every_listed_module_exists() -> None:
    found = {f"voxnative.{module.name}" for module in pkgutil.iter_modules(voxnative.__path__)}
    assert set().union(*LISTED.values()) <= found


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
