"""Step `overlap`: teach, train_vae and train_tts side by side on one machine.

The teacher's processes feed the VAE from the first half hour of speech on; the TTS training
starts when the VAE is frozen. A cut run (`--deadline-s`) saves its state; the same command
resumes it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

STEPS = ("teach", "train_vae", "train_tts")
GRACE_S = 60.0


def run(settings, work: Path, stop_at: float, config: Path, overrides: list[str]) -> dict:
    """Start the three steps, wait for all, and report their exit codes.

    Raises:
        RuntimeError: a step failed; its log is `WORK/STEP.log`.
    """
    work.mkdir(parents=True, exist_ok=True)
    processes, logs = {}, {}
    for step in STEPS:
        command = [
            sys.executable,
            str(Path(__file__).with_name("run.py")),
            step,
            "--config",
            str(config),
            "--work",
            str(work),
        ]
        for override in overrides:
            command += ["--set", override]
        if step != "teach" and stop_at < 1e8 + time.monotonic():
            command += ["--deadline-s", str(stop_at - time.monotonic())]
        logs[step] = open(work / f"{step}.log", "a")  # noqa: SIM115 (closed below)
        processes[step] = subprocess.Popen(command, stdout=logs[step], stderr=subprocess.STDOUT)
    while any(process.poll() is None for process in processes.values()):
        time.sleep(0.5)
        failed = [step for step, process in processes.items() if process.poll()]
        if failed or time.monotonic() > stop_at + GRACE_S:
            for process in processes.values():
                process.terminate()
            break
        if time.monotonic() > stop_at and processes["teach"].poll() is None:
            processes["teach"].terminate()  # whole shards only: nothing to save
    for log in logs.values():
        log.close()
    codes = {step: process.wait() for step, process in processes.items()}
    if bad := [
        step for step, code in codes.items() if code and not (step == "teach" and code == -15)
    ]:
        raise RuntimeError(f"{bad} failed (exit codes {codes}); see {work}/{bad[0]}.log")
    return codes
