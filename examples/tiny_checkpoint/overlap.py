"""Step `overlap`: teach, train_vae and train_tts side by side on one machine.

With two GPUs or more the VAE has the first for itself and starts as soon as `wait_hours` of
speech exist; teacher and TTS take turns on the second. On a single GPU the VAE waits until the
teacher has finished: sharing starves both. The TTS training starts when the VAE is frozen. A cut
run (`--deadline-s`) saves its state; the same command resumes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from shards import FINISHED

STEPS = ("teach", "train_vae", "train_tts")
GRACE_S = 60.0


def devices() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for name in given.split(",") if name]
    return [str(i) for i in range(torch.cuda.device_count())]


def run(
    settings, work: Path, stop_at: float, finish: bool, config: Path, overrides: list[str]
) -> dict:
    """Start the three steps, wait for all, and report their exit codes.

    Raises:
        RuntimeError: a step failed (the others went on); its log is `WORK/STEP.log`.
    """
    work.mkdir(parents=True, exist_ok=True)
    (work / "speech" / FINISHED).unlink(missing_ok=True)
    gpus = devices()
    if len(gpus) < 2:
        overrides = [*overrides, "vae.wait_hours=1000.0"]
    processes, logs = {}, {}
    for step in STEPS:
        command = [sys.executable, str(Path(__file__).with_name("run.py")), step]
        command += ["--config", str(config), "--work", str(work)]
        for override in overrides:
            command += ["--set", override]
        if step != "teach" and stop_at < 1e8 + time.monotonic():
            option = "--finish-s" if finish else "--deadline-s"
            command += [option, str(stop_at - time.monotonic())]
        environment = dict(os.environ)
        if len(gpus) >= 2:
            environment["CUDA_VISIBLE_DEVICES"] = gpus[0 if step == "train_vae" else 1]
        logs[step] = open(work / f"{step}.log", "a")  # noqa: SIM115 (closed below)
        processes[step] = subprocess.Popen(
            command, stdout=logs[step], stderr=subprocess.STDOUT, env=environment
        )
    ended: set[str] = set()  # by this process
    while running := {step for step, process in processes.items() if process.poll() is None}:
        time.sleep(0.5)
        if processes["teach"].poll():  # the others make do with what it has read
            (work / "speech").mkdir(exist_ok=True)
            (work / "speech" / FINISHED).touch()
        late = time.monotonic() > stop_at + GRACE_S
        for step in running:
            # The teacher writes whole shards only: it has nothing to save.
            if late or (step == "teach" and time.monotonic() > stop_at):
                processes[step].terminate()
                ended.add(step)
    for log in logs.values():
        log.close()
    codes = {step: process.wait() for step, process in processes.items()}
    if bad := [step for step, code in codes.items() if code and step not in ended]:
        raise RuntimeError(f"{bad} failed (exit codes {codes}); see {work}/{bad[0]}.log")
    return codes
