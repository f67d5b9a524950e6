"""Rates, ids and defaults that several parts share.

A *patch* is P latent frames: one step of the language model. Ids and defaults are those of the
reference implementation (Source: voxcpm 2.0.3, `VoxCPM2Model`).
"""

from __future__ import annotations

# Special ids of the text vocabulary.
AUDIO_START_ID = 101
AUDIO_END_ID = 102
REF_START_ID = 103
REF_END_ID = 104

# Ids appended behind the text vocabulary V: audio patch = V, continue = V + 1, stop = V + 2.
N_ENGINE_IDS = 3

# Sampling defaults and their valid ranges (inclusive).
DEFAULT_CFG = 2.0
DEFAULT_TIMESTEPS = 10
DEFAULT_TEMPERATURE = 1.0
DEFAULT_MIN_STEPS = 2
CFG_RANGE = (0.0, 10.0)
TIMESTEPS_RANGE = (2, 100)  # one step would return the noise itself
TEMPERATURE_RANGE = (0.0, 2.0)
MAX_SEED = 2**63 - 1

# Length of one request, in patches.
MAX_STEPS = 2048
STEPS_PER_TOKEN = 6
STEPS_MARGIN = 10

# Speech that falls silent for this long has run out, whatever the stop head says; 0: never.
DEFAULT_MAX_SILENCE_S = 3.0
MAX_SILENCE_RANGE_S = (0.0, 600.0)

# How a piece of a long text takes over the voice from what was spoken before it.
JOINTS = ("continue", "reference", "separate")

# Attempts at a text whose audio is too long for it, and patches a token that are too long.
BADCASE_MAX_TIMES = 3
BADCASE_MAX_TIMES_RANGE = (1, 10)
BADCASE_RATIO_RANGE = (0.1, 100.0)

# Reference and prompt recordings.
MAX_REFERENCE_S = 30.0
SILENCE_PEAK = 1e-4
