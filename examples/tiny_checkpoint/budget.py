"""Time budgets of the two trainings: seconds trained so far, across interruptions."""

from __future__ import annotations

import math
import time


class Budget:
    """Counts training seconds against a total and against this process's deadline.

    Args:
        total_s: training seconds of the whole stage.
        spent_s: seconds already trained before this process started.
        stop_at: monotonic time at which this process must stop; training resumes later.
        max_steps: counts this many steps of one process instead of seconds (0: seconds).
    """

    def __init__(self, total_s: float, spent_s: float, stop_at: float, max_steps: int = 0):
        self._total_s, self._before_s, self._stop_at, self._max_steps = (
            total_s,
            spent_s,
            stop_at,
            max_steps,
        )
        self._started = time.monotonic()
        self.n_steps = 0

    @property
    def spent_s(self) -> float:
        """Training seconds so far."""
        return self._before_s + time.monotonic() - self._started

    @property
    def progress(self) -> float:
        """Share of the budget that is spent, 0..1."""
        if self._max_steps:
            return min(1.0, self.n_steps / self._max_steps)
        return min(1.0, self.spent_s / self._total_s)

    @property
    def done(self) -> bool:
        """True once the stage's budget is spent."""
        return self.progress >= 1.0

    @property
    def cut(self) -> bool:
        """True once this process has to stop."""
        return time.monotonic() >= self._stop_at


def cosine(progress: float, floor: float = 0.02) -> float:
    """Learning-rate factor: from 1 down to `floor` along half a cosine."""
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
