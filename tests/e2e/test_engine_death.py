"""When the engine's process dies, open requests end with an error soon, and later ones too."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psutil
import pytest

from voxnative.errors import EngineError
from voxnative.offline import VoxNative

DEADLINE_S = 10


def test_open_and_later_requests_end_with_an_error(random_checkpoint: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    speech = VoxNative(random_checkpoint, max_num_seqs=4)
    mine = set(psutil.Process().children(recursive=True)) - before
    raised: list[EngineError] = []

    def speak() -> None:
        texts = [
            f"a long text that is being spoken when the engine dies, number {i}" for i in "abc"
        ]
        with pytest.raises(EngineError) as caught:
            speech.synthesize_batch(texts, max_steps=400)
        raised.append(caught.value)

    try:
        next(speech.stream("warm up", max_steps=2)).samples  # noqa: B018
        thread = threading.Thread(target=speak)
        thread.start()
        time.sleep(0.5)
        for process in mine:
            if process.name().startswith("VLLM::Engine"):
                process.kill()
        started = time.monotonic()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), f"still waiting {DEADLINE_S} s after the engine died"
        print(f"error after {time.monotonic() - started:.2f} s: {raised[0]}")
        assert len(raised) == 1
        with pytest.raises(EngineError):
            speech.synthesize("and after that")
    finally:
        speech.close()
    workers = [process for process in mine if process.is_running() and "VLLM" in process.name()]
    _, alive = psutil.wait_procs(workers, timeout=3 * DEADLINE_S)
    assert alive == []
