"""Deaths: of the engine, of the front end, and a close while requests run."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.engines import RecordingEngine
from voxnative.errors import EngineError

DEADLINE_S = 10


@pytest.mark.ends_shared_engine
def test_open_and_later_requests_end_with_an_error(roomy: RecordingEngine) -> None:
    speech = roomy.api
    (engine,) = speech._speech._engine.engine_core.resources.engine_manager.processes
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
        engine.kill()
        started = time.monotonic()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), f"still waiting {DEADLINE_S} s after the engine died"
        print(f"error after {time.monotonic() - started:.2f} s: {raised[0]}")
        assert len(raised) == 1
        with pytest.raises(EngineError):
            speech.synthesize("and after that")
    finally:
        speech.close()
    wait_until_gone([engine.pid])


@pytest.mark.ends_shared_engine
def test_close_ends_open_requests(speaking: RecordingEngine) -> None:
    speech = speaking.api
    raised: list[EngineError] = []

    def speak() -> None:
        with pytest.raises(EngineError) as caught:
            speech.synthesize("a long text " * 8, max_steps=400)
        raised.append(caught.value)

    thread = threading.Thread(target=speak)
    stream = speech.stream("and one that is read slowly", max_steps=60)
    next(stream)
    thread.start()
    time.sleep(0.5)
    speech.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert len(raised) == 1
    with pytest.raises(EngineError, match="closed"):
        next(stream)
    for call in (speech.synthesize, speech.stream):
        with pytest.raises(EngineError, match="closed"):
            call("after the end")
    with pytest.raises(EngineError, match="closed"), speech:
        pass
    speech.close()


@pytest.mark.full_model
def test_a_killed_front_end_takes_its_engine_along(random_checkpoint: Path) -> None:
    pids = left_by_a_killed_front_end(random_checkpoint)
    assert len(pids) == 1, "the engine's process is the worker's"
    wait_until_gone(pids)


def left_by_a_killed_front_end(checkpoint: Path, *settings: str) -> list[int]:
    """vLLM's processes of a front end that was killed; settings as `NAME=VALUE`."""
    code = (
        "import os, sys, psutil; from voxnative import VoxNative\n"
        "if __name__ == '__main__':\n"
        "    settings = dict(pair.split('=') for pair in sys.argv[2:])\n"
        "    settings = {name: int(value) for name, value in settings.items()}\n"
        "    speech = VoxNative(sys.argv[1], max_num_seqs=1, **settings)\n"
        "    children = psutil.Process().children(recursive=True)\n"
        "    print('engine', *(p.pid for p in children if 'VLLM' in p.name()), flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, checkpoint, *settings],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert run.returncode == -9, run.stderr[-2000:]
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("engine ")]
    return [int(pid) for pid in line.split()[1:]]


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 3 * DEADLINE_S
    while left := [pid for pid in pids if _runs(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.2)


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
