"""Modules that a peer asks for and that this machine lacks, for as long as the peer runs."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@contextmanager
def stand_ins(folders: Mapping[str, Path]) -> Iterator[None]:
    """Put a folder on the module path for each module that is not installed.

    Processes that `multiprocessing` spawns in the block have it too. Servers of other systems do
    not: libraries such as transformers would take the stand-in for the package.

    Args:
        folders: module -> the folder that holds its stand-in.
    """
    missing = {name: str(at) for name, at in folders.items() if _is_missing(name)}
    sys.path.extend(missing.values())
    try:
        yield
    finally:
        for name, folder in missing.items():
            sys.path.remove(folder)
            sys.modules.pop(name, None)


def _is_missing(name: str) -> bool:
    return name not in sys.modules and importlib.util.find_spec(name) is None


def origin(module: str, package: str) -> str:
    """A package's version; for a stand-in, what its first line says of itself."""
    try:
        return version(package)
    except PackageNotFoundError:
        text = importlib.import_module(module).__doc__ or "no package"
        return f"a stand-in: {text.strip().splitlines()[0]}"
