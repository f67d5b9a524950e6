"""A registered voice is its content: what lies in the caches never follows from its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines import Recorded, RecordingEngine
from tests.reference import reference_generate
from voxnative.plugin import ARCHITECTURE
from voxnative.serving.adapters.base import SpeechInputs
from voxnative.serving.adapters.registry import adapter_for
from voxnative.serving.latents import latent_encoder
from voxnative.serving.schema import SpeechBody
from voxnative.serving.voices import VoiceStore

RATE_HZ = 16_000
N_STEPS = 12
TEXT = "the same words under the same name"
# 66 patches behind REF_START: two whole KV blocks of the engine's 32 positions, and a rest.
REFERENCE_S, N_SHARED = 0.66, 64


class VoiceDesk:
    """Registers voices and speaks with them, as the server's routes do, on a recording engine."""

    def __init__(self, engine: RecordingEngine, directory: Path) -> None:
        self.engine = engine
        encode = latent_encoder(engine.api._speech._engine, engine.api.config)
        self.store = VoiceStore(directory, RATE_HZ, encode)

    def register(self, name: str, samples: np.ndarray) -> str:
        return self.engine.wait(self.store.register(name, samples, consent="agreed")).id

    def call(self, name: str) -> dict[str, Any]:
        body = SpeechBody(input=TEXT, voice=name, seed=5, max_new_tokens=N_STEPS)
        inputs = SpeechInputs(voice=self.store.resolve(name))
        call = adapter_for(ARCHITECTURE).build(body, inputs)
        return {"text": call.text, **call.arguments}

    def n_encoded(self) -> int:
        return self.engine.rpc("counts")["encoded"]


@pytest.fixture
def desk(roomy: RecordingEngine, tmp_path: Path) -> VoiceDesk:
    return VoiceDesk(roomy, tmp_path / "voices")


def assert_is_reference_s(got: Recorded, directory: Path, samples: np.ndarray) -> None:
    expected = reference_generate(directory, TEXT, reference=samples, seed=5, n_steps=N_STEPS)
    assert (got.latents - expected.latents).abs().max() < 1e-4


def test_two_recordings_under_one_name_never_share_state(
    desk: VoiceDesk, voice: Callable[[int, float], np.ndarray]
) -> None:
    recordings = [voice(pitch_hz, REFERENCE_S) for pitch_hz in (143, 212)]
    ids, runs = [], []
    for samples in recordings:
        ids.append(desk.register("Anna", samples))
        before = desk.n_encoded()
        runs += desk.engine.run(desk.call("Anna"))
        assert desk.n_encoded() - before == 1, "the new recording is encoded"
        desk.store.delete("Anna")
    assert ids[0] != ids[1]
    assert [run.cached_tokens for run in runs] == [0, 0]
    for run, samples in zip(runs, recordings, strict=True):
        assert_is_reference_s(run, desk.engine.directory, samples)
    assert (runs[0].latents - runs[1].latents).abs().max() > 0.01

    # The other way round: one recording is one voice, whatever it is called.
    assert desk.register("Berta", recordings[0]) == ids[0]
    before = desk.n_encoded()
    (again,) = desk.engine.run(desk.call("Berta"))
    assert desk.n_encoded() == before
    assert again.cached_tokens >= N_SHARED
    assert (again.latents - runs[0].latents).abs().max() < 1e-4


def test_a_name_that_changes_hands_while_its_first_voice_still_speaks(
    desk: VoiceDesk, voice: Callable[[int, float], np.ndarray]
) -> None:
    recordings = [voice(pitch_hz, REFERENCE_S) for pitch_hz in (157, 231)]
    calls = []
    for samples in recordings:
        desk.register("Clara", samples)
        calls.append(desk.call("Clara"))
        desk.store.delete("Clara")
    together = desk.engine.run(*calls)
    assert max(max(run.batch_sizes) for run in together) == 2
    for run, samples in zip(together, recordings, strict=True):
        assert run.cached_tokens == 0
        assert_is_reference_s(run, desk.engine.directory, samples)
