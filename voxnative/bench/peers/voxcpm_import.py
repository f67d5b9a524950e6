"""`voxcpm.model.voxcpm2` without the front ends that its package imports on the way.

The package's ``__init__`` brings ModelScope and torchaudio, which the networks do not need; an
empty package stands in for it, and empty modules for librosa and torchaudio where they are absent.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from voxnative.errors import MissingExtraError

STAND_INS = "voxcpm/__init__ (its denoiser and text normaliser are not imported)"


def import_voxcpm2() -> ModuleType:
    """The module `voxcpm.model.voxcpm2`.

    Raises:
        MissingExtraError: the package is not installed.
    """
    if "voxcpm.model.voxcpm2" in sys.modules:
        return sys.modules["voxcpm.model.voxcpm2"]
    spec = importlib.util.find_spec("voxcpm")
    if spec is None or spec.submodule_search_locations is None:
        raise MissingExtraError("voxcpm", "bench")
    root = Path(next(iter(spec.submodule_search_locations)))
    for name, path in (("voxcpm", root), ("voxcpm.model", root / "model")):
        package = ModuleType(name)
        package.__path__ = [str(path)]
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = package
    importlib.import_module("transformers")  # looks for both itself: before they are stood in for
    absent = [n for n in ("librosa", "torchaudio") if importlib.util.find_spec(n) is None]
    sys.modules.update({name: ModuleType(name) for name in absent})
    try:
        return importlib.import_module("voxcpm.model.voxcpm2")
    finally:
        for name in absent:
            del sys.modules[name]
