"""Keeps the garbage collector away from what lives as long as an engine does.

A process that has imported vLLM holds close to a million objects. The collector walks through
all of them now and then, which takes a second in which no audio is handed out. Frozen, they are
left alone: an object without a reference is still freed at once, only rings of objects that were
there before the engine stay until it is closed.
"""

from __future__ import annotations

import gc
import threading

_lock = threading.Lock()
_n_holders = 0
_is_ours = False  # nobody else had frozen anything


def freeze_heap() -> None:
    """Leave all objects that there are out of collections; `thaw_heap` once for each call."""
    global _n_holders, _is_ours
    with _lock:
        if _n_holders == 0:
            _is_ours = gc.get_freeze_count() == 0
        _n_holders += 1
        gc.freeze()


def thaw_heap() -> None:
    """Take them in again, where this was the last holder and the first to freeze anything."""
    global _n_holders
    with _lock:
        _n_holders -= 1
        if _n_holders == 0 and _is_ours:
            gc.unfreeze()
