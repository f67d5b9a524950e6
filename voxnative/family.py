"""In what the model families differ beyond their sizes, one field for each difference.

`architecture` in config.json names the family. Code asks for a field, never for the name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["zero_shot", "reference", "continuation", "reference_continuation"]


@dataclass(frozen=True)
class Family:
    """One architecture.

    Attributes:
        architecture: value of that key in config.json.
        modes: prompt layouts that it was trained on.
        takes_description: a voice may be described in words in front of the text.
        n_mu_tokens: positions of the local DiT that carry the condition from the two language
            models. 2: one each. 1: their sum, added to the flow time's embedding.
        projects_fusion: the residual LM reads a projection of hidden state and patch embedding
            side by side; else their sum.
        n_context_patches: last patches of a prompt that the VAE decoder runs over before the
            first new sample.
    """

    architecture: str
    modes: tuple[Mode, ...]
    takes_description: bool
    n_mu_tokens: Literal[1, 2]
    projects_fusion: bool
    n_context_patches: int


# Source: voxcpm 2.0.3, `VoxCPM2Model`.
VOXCPM2 = Family(
    architecture="voxcpm2",
    modes=("zero_shot", "reference", "continuation", "reference_continuation"),
    takes_description=True,
    n_mu_tokens=2,
    projects_fusion=True,
    n_context_patches=3,
)
# VoxCPM-0.5B and VoxCPM1.5. Source: voxcpm 2.0.3, `VoxCPMModel`, and `VoxCPM._generate`, which
# takes no reference for them.
VOXCPM = Family(
    architecture="voxcpm",
    modes=("zero_shot", "continuation"),
    takes_description=False,
    n_mu_tokens=1,
    projects_fusion=False,
    n_context_patches=2,
)
