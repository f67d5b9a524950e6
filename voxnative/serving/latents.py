"""Latents of a recording, from the AudioVAE encoder that runs inside the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from voxnative.config import VoxConfig
from voxnative.serving.http_errors import engine_dead

Encode = Callable[[np.ndarray], Awaitable[np.ndarray]]


def latent_encoder(engine: Any, config: VoxConfig) -> Encode:
    """A function ``samples [n] -> latents [n_patches, P, D]``, both float32.

    It raises ``RequestFailed`` (503) when the engine is dead, or dies meanwhile.

    Args:
        engine: vLLM's ``AsyncLLM`` with one of voxnative's workers.
        config: of the checkpoint that it runs.
    """

    from vllm.v1.engine.exceptions import EngineDeadError  # brings the whole engine along

    async def encode(samples: np.ndarray) -> np.ndarray:
        padded = np.pad(samples, (0, -len(samples) % config.patch_samples_in))
        try:
            answers = await engine.collective_rpc("reference_latents", args=(padded.tobytes(),))
        except EngineDeadError as error:
            raise engine_dead() from error
        frames = answers[0]
        latents = np.frombuffer(frames, np.float32)
        return latents.reshape(-1, config.patch_size, config.feat_dim)

    return encode
