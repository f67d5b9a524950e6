"""VoxCPM-0.5B's and VoxCPM1.5's forms through the engine and the server (an engine for each)."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from tests.checkpoints import write_checkpoint
from tests.engines import RecordingEngine
from tests.helpers.runtime import (
    Server,
    assert_audio_reply,
    assert_refused,
    send_audio_speech_request,
    serve,
)
from tests.parity.conftest import VARIANTS
from tests.parity.test_plain_loop import N_STEPS, TEXT, recording
from tests.reference import reference_generate
from voxnative.errors import ParameterError

pytestmark = pytest.mark.full_model

TOLERANCE = 1e-4
PROMPT_TEXT = "hello there "


@pytest.fixture(scope="module", params=["voxcpm-0.5b", "voxcpm-1.5"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RecordingEngine]:
    directory = write_checkpoint(tmp_path_factory.mktemp("voxcpm"), **VARIANTS[request.param])
    engine = RecordingEngine(directory, max_num_seqs=4)
    yield engine
    engine.api.close()


def rate_of(engine: RecordingEngine) -> int:
    return engine.api.config.vae.sample_rate_hz


def test_a_mixed_batch_equals_the_reference(engine: RecordingEngine) -> None:
    """Both modes, two seeds and two solver lengths at once; each 40 steps of its own run."""
    rate_hz = rate_of(engine)
    prompts = [recording(rate_hz, seconds, 150) for seconds in (0.021, 0.034)]
    requests: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"seed": 1, "cfg": 2.0, "timesteps": 10}, {}),
        ({"seed": 2, "cfg": 3.0, "timesteps": 6}, {}),
        *(
            (
                {"seed": 3, "cfg": 2.0, "timesteps": 6},
                {"prompt": prompt, "prompt_text": PROMPT_TEXT},
            )
            for prompt in prompts
        ),
    ]
    calls = []
    for settings, given in requests:
        call = {"text": TEXT, "max_steps": N_STEPS, **settings, **given}
        if "prompt" in given:
            call["prompt"] = (given["prompt"], rate_hz)
        calls.append(call)
    runs = engine.run(*calls)
    assert max(max(run.batch_sizes) for run in runs) == 4
    for run, (settings, given) in zip(runs, requests, strict=True):
        expected = reference_generate(engine.directory, TEXT, n_steps=N_STEPS, **settings, **given)
        error = (run.latents - expected.latents).abs().max()
        audio_error = (torch.from_numpy(run.result.samples) - expected.audio).abs().max()
        print(f"{settings}, {list(given)}: latents {error:.1e}, audio {audio_error:.1e}")
        assert error < TOLERANCE
        assert audio_error < TOLERANCE
        assert run.result.sample_rate_hz == rate_hz


def test_a_prompt_is_encoded_once(engine: RecordingEngine) -> None:
    rate_hz = rate_of(engine)
    call = {
        "text": TEXT,
        "seed": 4,
        "max_steps": 8,
        "prompt": (recording(rate_hz, 0.05, 180), rate_hz),
        "prompt_text": PROMPT_TEXT,
    }
    (first,) = engine.run(call)
    before = engine.rpc("counts")["encoded"]
    (second,) = engine.run(call)
    assert engine.rpc("counts")["encoded"] == before
    assert (first.latents - second.latents).abs().max() < TOLERANCE


@pytest.mark.parametrize("field", ["reference", "description"])
def test_other_modes_are_refused_before_the_engine(engine: RecordingEngine, field: str) -> None:
    rate_hz = rate_of(engine)
    given = {"reference": (recording(rate_hz, 0.05, 180), rate_hz), "description": "a calm voice"}
    with pytest.raises(ParameterError, match="modes zero_shot, continuation") as caught:
        engine.api.synthesize(TEXT, **{field: given[field]})
    assert caught.value.field == field


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    directory = write_checkpoint(folder / "checkpoint", **VARIANTS["voxcpm-0.5b"])
    deploy = folder / "deploy.yaml"
    deploy.write_text(json.dumps({"voxnative": {"voices_dir": str(folder / "voices")}}))
    script = Path(sys.executable).with_name("voxnative")
    command = [str(script), "serve", str(directory), "--deploy", str(deploy)]
    with serve([*command, "--max-num-seqs", "2"], folder) as server:
        yield server


def data_url(rate_hz: int) -> tuple[str, np.ndarray]:
    samples = recording(rate_hz, 0.3, 160)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate_hz, format="WAV", subtype="FLOAT")
    return "data:audio/wav;base64," + base64.b64encode(buffer.getvalue()).decode(), samples


def test_the_server_continues_a_recording_and_refuses_the_rest(server: Server) -> None:
    url, samples = data_url(16_000)
    body = {
        "input": TEXT,
        "seed": 9,
        "max_new_tokens": 20,
        "response_format": "pcm",
        "ref_audio": url,
        "ref_text": PROMPT_TEXT,
    }
    heard = assert_audio_reply(send_audio_speech_request(server, body), body, 16_000)
    directory = server.log.parent / "checkpoint"
    expected = reference_generate(
        directory, TEXT, seed=9, n_steps=20, prompt=samples, prompt_text=PROMPT_TEXT
    )
    assert np.abs(heard - expected.audio.numpy()).max() < 1 / 32768 + TOLERANCE
    del body["ref_text"]
    assert_refused(send_audio_speech_request(server, body), 400, "ref_text")
    described = {"input": TEXT, "instructions": "a calm voice"}
    assert_refused(send_audio_speech_request(server, described), 400, "instructions")
