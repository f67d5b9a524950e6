"""Adapters by the architecture they serve."""

from __future__ import annotations

from collections.abc import Callable

from voxnative.errors import CheckpointError
from voxnative.serving.adapters.base import ARTTSAdapter

_ADAPTERS: dict[str, type[ARTTSAdapter]] = {}


def register_adapter(architecture: str) -> Callable[[type[ARTTSAdapter]], type[ARTTSAdapter]]:
    """Decorator: make a class the adapter of an architecture, as vLLM names it."""

    def add(adapter: type[ARTTSAdapter]) -> type[ARTTSAdapter]:
        _ADAPTERS[architecture] = adapter
        return adapter

    return add


def adapter_for(architecture: str) -> ARTTSAdapter:
    """The adapter of an architecture.

    Raises:
        CheckpointError: no adapter serves it; names those that there are.
    """
    import voxnative.serving.adapters.voxcpm
    import voxnative.serving.adapters.voxcpm2  # noqa: F401  both register themselves

    if architecture not in _ADAPTERS:
        raise CheckpointError(
            f"no speech adapter for the architecture {architecture!r}; "
            f"valid: {', '.join(sorted(_ADAPTERS))}"
        )
    return _ADAPTERS[architecture]()
