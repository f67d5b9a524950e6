"""From a body to the call that speaks it, without a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from voxnative.errors import CheckpointError, ParameterError, TextError
from voxnative.plugin import ARCHITECTURE, ARCHITECTURES
from voxnative.serving.adapters.base import ARTTSAdapter, SpeechInputs
from voxnative.serving.adapters.registry import adapter_for
from voxnative.serving.schema import SpeechBody
from voxnative.serving.voices import Voice

RECORDING = np.ones(16_000, np.float32)
SEEDED = Voice("alloy", "alloy", seed=11)
REGISTERED = Voice("v", "v", recording=RECORDING, sample_rate_hz=16_000)
TRANSCRIBED = Voice("v", "v", recording=RECORDING, sample_rate_hz=16_000, transcript="words")


@pytest.fixture(scope="module")
def adapter() -> ARTTSAdapter:
    return adapter_for(ARCHITECTURE)


def arguments(adapter: ARTTSAdapter, inputs: SpeechInputs, **fields: Any) -> dict[str, Any]:
    body = SpeechBody(input="hi", **fields)
    adapter.validate(body)
    call = adapter.build(body, inputs)
    assert call.text == "hi"
    return dict(call.arguments)


def test_an_unknown_architecture_names_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match=rf"'LlamaForCausalLM'; valid: {ARCHITECTURE}, Vox"):
        adapter_for("LlamaForCausalLM")


def test_only_what_reaches_the_model_is_passed_on(adapter: ARTTSAdapter) -> None:
    assert arguments(adapter, SpeechInputs(), model="tts-1", speed=2.0, stream=True) == {}
    given = arguments(
        adapter,
        SpeechInputs(),
        seed=1,
        cfg_value=3.0,
        inference_timesteps=5,
        temperature=0.5,
        max_new_tokens=9,
        instructions="calm",
    )
    assert given == {
        "seed": 1,
        "cfg": 3.0,
        "timesteps": 5,
        "temperature": 0.5,
        "max_steps": 9,
        "description": "calm",
    }


def test_a_voice_that_is_a_seed(adapter: ARTTSAdapter) -> None:
    assert arguments(adapter, SpeechInputs(voice=SEEDED)) == {"seed": 11}
    assert arguments(adapter, SpeechInputs(voice=SEEDED), seed=5) == {"seed": 5}


def test_a_registered_voice(adapter: ARTTSAdapter) -> None:
    reference = (RECORDING, 16_000)
    assert arguments(adapter, SpeechInputs(voice=REGISTERED)) == {"reference": reference}
    assert arguments(adapter, SpeechInputs(voice=TRANSCRIBED)) == {
        "prompt": reference,
        "prompt_text": "words",
    }
    # A continuation takes no description, a reference does.
    assert arguments(adapter, SpeechInputs(voice=TRANSCRIBED), instructions="calm") == {
        "reference": reference,
        "description": "calm",
    }


def test_the_bodys_own_recording(adapter: ARTTSAdapter) -> None:
    inputs = SpeechInputs(ref_audio=b"RIFF")
    assert arguments(adapter, inputs, ref_audio="data:,") == {"reference": b"RIFF"}
    assert arguments(adapter, inputs, ref_audio="data:,", ref_text="words") == {
        "prompt": b"RIFF",
        "prompt_text": "words",
    }


@pytest.mark.parametrize("voice", [REGISTERED, TRANSCRIBED], ids=["bare", "transcribed"])
def test_a_recording_is_continued_in_a_registered_voice(
    adapter: ARTTSAdapter, voice: Voice
) -> None:
    inputs = SpeechInputs(ref_audio=b"RIFF", voice=voice)
    assert arguments(adapter, inputs, ref_audio="data:,", ref_text="words") == {
        "reference": (RECORDING, 16_000),
        "prompt": b"RIFF",
        "prompt_text": "words",
    }
    seeded = SpeechInputs(ref_audio=b"RIFF", voice=SEEDED)
    assert "reference" not in arguments(adapter, seeded, ref_audio="data:,", ref_text="words")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"ref_text": "words"}, "ref_text"),
        ({"ref_text": "words", "ref_audio": "data:,", "instructions": "calm"}, "instructions"),
    ],
)
def test_combinations_without_a_layout(
    adapter: ARTTSAdapter, fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        adapter.validate(SpeechBody(input="hi", **fields))
    assert caught.value.field == name


@pytest.fixture(scope="module")
def older() -> ARTTSAdapter:
    return adapter_for(ARCHITECTURES["voxcpm"])


def test_the_older_family_continues_recordings(older: ARTTSAdapter) -> None:
    assert arguments(older, SpeechInputs(voice=SEEDED), cfg_value=3.0) == {"seed": 11, "cfg": 3.0}
    assert arguments(older, SpeechInputs(voice=TRANSCRIBED)) == {
        "prompt": (RECORDING, 16_000),
        "prompt_text": "words",
    }
    given = SpeechInputs(ref_audio=b"RIFF", voice=REGISTERED)
    assert arguments(older, given, ref_audio="data:,", ref_text="words") == {
        "prompt": b"RIFF",
        "prompt_text": "words",
    }


@pytest.mark.parametrize(
    ("fields", "inputs", "name", "valid"),
    [
        ({"instructions": "calm"}, SpeechInputs(), "instructions", "ref_audio with ref_text"),
        ({"ref_audio": "data:,"}, SpeechInputs(ref_audio=b"RIFF"), "ref_text", "continuation"),
        ({"ref_text": "words"}, SpeechInputs(), "ref_text", "only together with ref_audio"),
        ({"voice": "v"}, SpeechInputs(voice=REGISTERED), "voice", "registered with ref_text"),
    ],
)
def test_the_older_family_refuses_its_other_modes(
    older: ARTTSAdapter, fields: dict[str, Any], inputs: SpeechInputs, name: str, valid: str
) -> None:
    with pytest.raises(ParameterError, match=valid) as caught:
        arguments(older, inputs, **fields)
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("text", "input"),
        ("reference", "ref_audio"),
        ("prompt", "ref_audio"),
        ("prompt_text", "ref_text"),
        ("description", "instructions"),
        ("cfg", "cfg_value"),
        ("timesteps", "inference_timesteps"),
        ("max_steps", "max_new_tokens"),
        ("seed", "seed"),
    ],
)
def test_errors_speak_of_the_bodys_fields(adapter: ARTTSAdapter, argument: str, name: str) -> None:
    error = adapter.in_body_terms(TextError(argument, 3, "another"))
    assert isinstance(error, TextError)
    assert str(error) == f"field '{name}': 3 is not valid; valid: another"
