"""Methods of the worker that front ends call by name, with vLLM's ``collective_rpc``.

Arguments and results are plain bytes and lists: vLLM's wire format needs no pickling for them.
"""

from typing import Any

import numpy as np
import torch


class SpeechWorkerRpc:
    """Mixed into the workers of all platforms."""

    model_runner: Any

    def speech_requests(self) -> list[str]:
        """Ids of the requests that hold side-path state."""
        return sorted(self.model_runner.states.slot_of)

    @torch.inference_mode()
    def reference_latents(self, samples: bytes) -> bytes:
        """Encode a recording with the AudioVAE, as a prompt's audio is encoded.

        Args:
            samples: float32 ``[n]`` at the VAE's input rate, whole patches.

        Returns:
            float32 ``[n_frames, D]``.
        """
        vae = self.model_runner.model.speech.audio_vae
        waveform = torch.from_numpy(np.frombuffer(samples, np.float32).copy())
        device = next(vae.parameters()).device
        frames = vae.encode(waveform.to(device).reshape(1, -1))  # [1, n_frames, D]
        return frames[0].float().cpu().numpy().tobytes()
