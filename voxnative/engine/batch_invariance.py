"""vLLM's batch-invariant mode for the networks behind the language models.

With ``VLLM_BATCH_INVARIANT=1`` a request's result does not depend, bit for bit, on what runs
beside it. Without it, kernels are chosen by the size of the batch and round differently; the scalar
quantiser behind the base LM turns a difference of rounding into whole levels now and then, so that
in bfloat16 a patch differs by some percent (plan/LOG.md).

vLLM makes the language models invariant by kernels of its own, and takes the split of long sums
away from the library's products, which ours are. What is left is here, and in the local networks'
attention (``nn.local_kernels``).

Source: vLLM 0.32, ``vllm/model_executor/determinism/batch_invariant.py``.
"""

from __future__ import annotations

import os

import torch
from vllm import envs

from voxnative.engine.options import SECTION, SpeechOptions


def is_on() -> bool:
    """Whether the mode was asked for."""
    return bool(envs.VLLM_BATCH_INVARIANT)


def check_options(options: SpeechOptions) -> None:
    """Refuse ways of computing that were not made invariant.

    Raises:
        ValueError: names the option, its value and what is valid.
    """
    for name, value in {"fp8_dit": True, "compile_solver": True, "kernels": False}.items():
        if getattr(options, name) is value:
            raise ValueError(
                f"additional_config['{SECTION}']['{name}']: {value} is not valid with "
                f"VLLM_BATCH_INVARIANT=1; valid: {not value}, or unset"
            )


def deny_products_a_workspace() -> None:
    """Before the first product: cuBLASLt gets a workspace of its own, which vLLM makes too small.

    Where it shares cuBLAS's, a product of a few rows finds room for a split sum after all.
    """
    os.environ["TORCH_CUBLASLT_UNIFIED_WORKSPACE"] = "0"


def agree_on_tf32() -> None:
    """Behind vLLM's own settings: make torch's older switch say the same.

    vLLM switches TF32 off for cuDNN's convolutions by the new names; until the old name agrees,
    reading it raises, and the AudioVAE's decoder reads and restores it.
    """
    torch.backends.cudnn.allow_tf32 = False
