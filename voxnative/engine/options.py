"""Our own engine options: the ``voxnative_engine`` section of vLLM's ``additional_config``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from voxnative.units import DEFAULT_TIMESTEPS, TIMESTEPS_RANGE

SECTION = "voxnative_engine"  # "voxnative" holds the server's settings
VAE_PRECISIONS = ("fp32", "tf32", "fp16")


@dataclass(frozen=True)
class SpeechOptions:
    """Options of the side path; sampling parameters belong to requests, not here.

    Attributes:
        compile_solver: run the local networks through ``torch.compile``. None: on CUDA where
            `kernels` is off, else not. On a CPU it saves a third of the solver's time but costs a
            minute or more of compilation at every start (plan/LOG.md). Not with LoRA adapters.
        kernels: our Triton kernels in the local networks. None: on CUDA.
        vae_precision: of the AudioVAE's decoder on CUDA: "fp32", "tf32" or "fp16" (60 dB and more
            against fp32).
        vae_kernels: our Triton kernels in the AudioVAE's decoder. None: as `kernels`.
        fp8_dit: weights of the local DiT in 8-bit floats (CUDA, capability 8.9 or above).
        graph_timesteps: numbers of timesteps whose step is captured as CUDA graphs at start;
            other numbers run without a graph.
    """

    compile_solver: bool | None = None
    kernels: bool | None = None
    vae_precision: str = "fp16"
    vae_kernels: bool | None = None
    fp8_dit: bool = False
    graph_timesteps: tuple[int, ...] = (DEFAULT_TIMESTEPS,)

    @classmethod
    def from_additional_config(cls, additional_config: Any) -> SpeechOptions:
        """Read the section, strictly.

        Args:
            additional_config: ``VllmConfig.additional_config``.

        Raises:
            ValueError: an unknown key or a value that is not valid; names what is.
        """
        section = additional_config.get(SECTION, {}) if isinstance(additional_config, dict) else {}
        known = [field.name for field in fields(cls)]
        read: dict[str, Any] = {}
        for key, value in section.items():
            if key not in known:
                raise ValueError(
                    f"additional_config['{SECTION}']: unknown key {key!r}; "
                    f"valid: {', '.join(sorted(known))}"
                )
            is_valid, valid, read[key] = _checked(key, value)
            if not is_valid:
                raise ValueError(
                    f"additional_config['{SECTION}']['{key}']: {value!r} is not valid; "
                    f"valid: {valid}"
                )
        return cls(**read)


def _checked(key: str, value: Any) -> tuple[bool, str, Any]:
    """Whether a value is valid, what would be, and the value as it is kept."""
    if key == "vae_precision":
        return value in VAE_PRECISIONS, ", ".join(VAE_PRECISIONS), value
    if key == "graph_timesteps":
        low, high = TIMESTEPS_RANGE
        is_list = isinstance(value, list | tuple)
        is_valid = is_list and all(type(n) is int and low <= n <= high for n in value)
        return (
            is_valid,
            f"a list of whole numbers from {low} to {high}",
            (tuple(dict.fromkeys(value)) if is_valid else value),
        )
    return isinstance(value, bool), "true, false", value
