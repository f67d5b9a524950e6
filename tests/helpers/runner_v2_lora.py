"""Adapters through Model Runner V2 on a CPU, see `runner_v2`.

    TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 python -m tests.helpers.runner_v2_lora OUT.npz \\
        ADAPTER...

Two adapters fit into a batch. Requests with each of the adapters and without one run alone,
together, and so long that they preempt each other. Writes each request's samples and prints what
happened as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from tests.helpers.runner_v2 import Engine, LoRARequest
from tests.helpers.runner_v2_calls import with_audio

MAX_LORAS, MAX_RANK = 2, 8


def main() -> None:
    file, *directories = sys.argv[1:]
    engine = Engine(
        enable_lora=True,
        max_loras=MAX_LORAS,
        max_cpu_loras=len(directories),
        max_lora_rank=MAX_RANK,
    )
    loras: list[LoRARequest | None] = [None]
    for i, directory in enumerate(directories, 1):
        loras.append(LoRARequest(Path(directory).name, i, directory))
        engine.core.add_lora(loras[i])
    for i, lora in enumerate(loras):
        engine.submit(f"alone {i}", lora, **with_audio("alone"))
        engine.run()
    engine.submit("continued 1", loras[1], **with_audio("continued"))
    engine.run()
    for i in reversed(range(len(loras))):  # two adapters at once: one waits until another leaves
        engine.submit(f"other {i}", loras[i], **with_audio("other"))
        engine.step()
    engine.run()
    assert engine.runner.n_preempted == 0
    for i in range(3):
        engine.submit(f"long {i}", loras[i], **with_audio("long"))
    engine.run()
    manager = engine.runner.lora_manager._adapter_manager
    report = {
        "preempted": engine.runner.n_preempted,
        "most_at_once": engine.runner.most_at_once,
        "left": sorted(engine.runner.states.slot_of),
        "resident": sorted(manager.list_adapters()),
    }
    engine.core.remove_lora(1)
    taken = {len(layer.taken) for layer in manager.net_adapters.layers.values()}
    report["resident_after_removal"] = sorted(manager.list_adapters())
    report["layers_taken"] = sorted(taken)
    np.savez(file, **{n: torch.cat(w).numpy() for n, w in engine.waves.items()})
    print("REPORT", json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
