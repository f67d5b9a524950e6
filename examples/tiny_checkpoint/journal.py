"""Training log: one JSON line every few seconds, and the progress bar of the running stage."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from tqdm import tqdm

EVERY_S = 5.0


class Journal:
    """Appends losses to `path` and shows them. The bar counts seconds of the budget.

    Args:
        path: the log; lines of several stages follow one another.
        name: of the stage.
        total_s: seconds of the budget.
        every_s: least time between two lines (0: a line a step, for toy runs).
    """

    def __init__(self, path: Path, name: str, total_s: float, every_s: float = EVERY_S):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._name, self._every_s = path, name, every_s
        self._bar = tqdm(total=round(total_s), desc=name, unit="s", mininterval=5)
        self._last, self._last_step = -every_s, 0  # the first step is always written

    def record(
        self, step: int, spent_s: float, losses: dict[str, torch.Tensor], force: bool = False
    ) -> None:
        """Write the losses if `every_s` has passed since the last line."""
        now = time.monotonic()
        if now - self._last < self._every_s and not force:
            return
        values = {name: round(float(value), 4) for name, value in losses.items()}
        rate = (step - self._last_step) / max(1e-6, now - self._last) if self._last > 0 else 0.0
        line = {
            "stage": self._name,
            "step": step,
            "spent_s": round(spent_s, 1),
            "steps_per_s": round(rate, 1),
            **values,
        }
        with open(self._path, "a") as file:
            file.write(json.dumps(line) + "\n")
        self._bar.update(round(spent_s) - self._bar.n)
        self._bar.set_postfix(values | {"it/s": round(rate, 1)})
        self._last, self._last_step = now, step

    def close(self) -> None:
        """Finish the bar."""
        self._bar.close()


def read_journal(path: Path, stage: str) -> list[dict]:
    """Lines of one stage, oldest first."""
    if not path.exists():
        return []
    return [
        line for line in map(json.loads, path.read_text().splitlines()) if line["stage"] == stage
    ]
