"""VoxCPM2 text-to-speech on stock vLLM, as a plugin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public names and their modules. They load on first use, so that `import voxnative` (which every
# vLLM process does through the plugin entry point) costs nothing.
_PUBLIC_NAMES = {
    "AsyncVoxNative": "offline",
    "SpeechChunk": "offline",
    "SpeechResult": "offline",
    "VoxNative": "offline",
    "PieceRecord": "result",
    "SpeechParams": "params",
    "VoxConfig": "config",
    "AudioInputError": "errors",
    "CheckpointError": "errors",
    "EngineError": "errors",
    "InvalidRequestError": "errors",
    "MissingExtraError": "errors",
    "ParameterError": "errors",
    "PieceError": "errors",
    "ReplicaLostError": "errors",
    "TextError": "errors",
    "VoxNativeError": "errors",
}

__all__ = [
    "AsyncVoxNative",
    "AudioInputError",
    "CheckpointError",
    "EngineError",
    "InvalidRequestError",
    "MissingExtraError",
    "ParameterError",
    "PieceError",
    "PieceRecord",
    "ReplicaLostError",
    "SpeechChunk",
    "SpeechParams",
    "SpeechResult",
    "TextError",
    "VoxConfig",
    "VoxNative",
    "VoxNativeError",
    "__version__",
]

if TYPE_CHECKING:
    from voxnative.config import VoxConfig
    from voxnative.errors import (
        AudioInputError,
        CheckpointError,
        EngineError,
        InvalidRequestError,
        MissingExtraError,
        ParameterError,
        PieceError,
        ReplicaLostError,
        TextError,
        VoxNativeError,
    )
    from voxnative.offline import AsyncVoxNative, SpeechChunk, SpeechResult, VoxNative
    from voxnative.params import SpeechParams
    from voxnative.result import PieceRecord


def __getattr__(name: str) -> Any:
    module = _PUBLIC_NAMES.get(name)
    if module is None:
        raise AttributeError(f"module 'voxnative' has no attribute {name!r}")
    return getattr(importlib.import_module(f"voxnative.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
