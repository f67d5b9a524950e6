"""Objects that an engine lives with are left out of collections until the last one closes."""

from __future__ import annotations

import subprocess
import sys

import pytest

HELD = """
import gc
from voxnative.frozen_heap import freeze_heap, thaw_heap
assert gc.get_freeze_count() == 0
freeze_heap(); freeze_heap()
n_frozen = gc.get_freeze_count()
thaw_heap()
assert gc.get_freeze_count() == n_frozen > 1000
thaw_heap()
assert gc.get_freeze_count() == 0
freeze_heap()
assert gc.get_freeze_count() > 1000
"""
FREED = """
import gc, weakref
from voxnative.frozen_heap import freeze_heap, thaw_heap

class Thing:
    pass

alone, ring, late = Thing(), Thing(), None
ring.itself = ring
there = [weakref.ref(alone), weakref.ref(ring)]
freeze_heap()
late = Thing()
late.itself = late
there.append(weakref.ref(late))
del alone, ring, late
gc.collect()
assert [ref() is None for ref in there] == [True, False, True]
thaw_heap()
gc.collect()
assert there[1]() is None
"""
FOREIGN = """
import gc
from voxnative.frozen_heap import freeze_heap, thaw_heap
gc.freeze()
freeze_heap(); thaw_heap()
assert gc.get_freeze_count() > 0
"""


@pytest.mark.parametrize("code", [HELD, FREED, FOREIGN])
def test_frozen_heap(code: str) -> None:
    """In a process of its own, where nobody else freezes anything."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
