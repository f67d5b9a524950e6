"""Time budgets of the two trainings: seconds trained so far, across interruptions."""

from __future__ import annotations

import math
import signal
import time


class Termination:
    """While entered, SIGTERM does not kill: a training ends as at its deadline, saved.

    Leaving it raises SystemExit if the signal came, so that no further step starts.
    """

    def __init__(self):
        self.came = False

    def __enter__(self) -> Termination:
        self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
        if self.came:
            raise SystemExit("stopped by SIGTERM; the same command goes on")

    def _note(self, number: int, frame: object) -> None:
        self.came = True


class Budget:
    """Counts training seconds against a total and against this process's deadline.

    Args:
        total_s: training seconds of the whole stage.
        spent_s: seconds already trained before this process started.
        stop_at: monotonic time at which this process must stop; training resumes later.
        termination: the other reason to stop.
        max_steps: counts this many steps instead of seconds (0: seconds).
        n_steps: taken before this process started.
        finish: shorten the total so that the stage is done, not cut, at `stop_at`; its learning
            rate then falls to its end.
    """

    def __init__(
        self,
        total_s: float,
        spent_s: float,
        stop_at: float,
        termination: Termination,
        max_steps: int = 0,
        n_steps: int = 0,
        finish: bool = False,
    ):
        self._before_s, self._stop_at, self._max_steps = spent_s, stop_at, max_steps
        self._termination = termination
        self._started = time.monotonic()
        self.total_s = total_s
        if finish:
            self.total_s = min(total_s, spent_s + max(1.0, stop_at - self._started))
        self.n_steps = n_steps

    @property
    def spent_s(self) -> float:
        """Training seconds so far."""
        return self._before_s + time.monotonic() - self._started

    @property
    def progress(self) -> float:
        """Share of the budget that is spent, 0..1."""
        if self._max_steps:
            return min(1.0, self.n_steps / self._max_steps)
        return min(1.0, self.spent_s / self.total_s)

    @property
    def done(self) -> bool:
        """True once the stage's budget is spent."""
        return self.progress >= 1.0

    @property
    def cut(self) -> bool:
        """True once this process has to stop."""
        return self._termination.came or time.monotonic() >= self._stop_at


def cosine(progress: float, floor: float = 0.02) -> float:
    """Learning-rate factor: from 1 down to `floor` along half a cosine."""
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
