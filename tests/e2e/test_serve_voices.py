"""``/v1/audio/voices``: registered, listed, spoken with, deleted; and every bad upload."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
import torch
from safetensors import safe_open

from tests.checkpoints import TRAINED_TINY, load_speech_nets
from tests.helpers.runtime import (
    VOICES,
    Reply,
    Server,
    assert_audio_reply,
    assert_refused,
    recording,
    send_audio_speech_request,
    send_voice,
)

pytestmark = [
    pytest.mark.tts,
    pytest.mark.advanced_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

MODEL_HZ = 16_000
FORM = {"name": "Anna", "consent": "agreed by the speaker, in writing"}
REQUEST = {"input": "hello there.", "seed": 1, "response_format": "pcm"}
OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "onyx", "nova", "sage", "shimmer"),
    *("verse", "marin", "cedar"),
)


@contextmanager
def registered(server: Server, audio: bytes, **form: str) -> Iterator[dict[str, Any]]:
    """A voice for the length of a block."""
    answer = send_voice(server, FORM | form, audio)
    assert answer.status == 200, answer.body
    voice = json.loads(answer.body)
    try:
        yield voice
    finally:
        assert delete(server, voice["id"]).status == 200


def delete(server: Server, key: str) -> Reply:
    answer = httpx.delete(f"{server.address}{VOICES}/{key}")
    return Reply(answer.status_code, answer.headers, [answer.content])


def listed(server: Server) -> list[dict[str, str]]:
    content = httpx.get(f"{server.address}{VOICES}").json()
    assert content["object"] == "list"
    assert content["data"] == content["voices"]
    return content["data"]


def spoken(server: Server, **fields: Any) -> np.ndarray:
    request = REQUEST | fields
    return assert_audio_reply(send_audio_speech_request(server, request), request, MODEL_HZ)


def test_the_list_holds_openais_names(speech_server: Server) -> None:
    assert listed(speech_server) == [{"id": name, "name": name} for name in OPENAI_VOICES]


def test_a_voice_from_upload_to_deletion(speech_server: Server) -> None:
    plain = spoken(speech_server)
    with registered(speech_server, recording(2.0)) as voice:
        assert voice["object"] == "audio.voice"
        assert voice["name"] == "Anna"
        assert voice["duration_s"] == pytest.approx(2.0, abs=0.05)
        assert {"id": voice["id"], "name": "Anna"} in listed(speech_server)
        by_name = spoken(speech_server, voice="Anna")
        by_id = spoken(speech_server, voice={"id": voice["id"]})
        np.testing.assert_array_equal(by_name, by_id)
        assert len(by_name) != len(plain) or np.abs(by_name - plain).max() > 0.01
    reply = send_audio_speech_request(speech_server, REQUEST | {"voice": "Anna"})
    assert_refused(reply, 400, "voice")
    assert_refused(delete(speech_server, voice["id"]), 404, "voice")


def test_a_voice_speaks_like_its_recording_given_with_the_request(
    speech_server: Server,
) -> None:
    audio = recording(1.6)  # whole patches, without silence: nothing is trimmed
    with registered(speech_server, audio):
        by_voice = spoken(speech_server, voice="Anna")
    url = "data:audio/wav;base64," + base64.b64encode(audio).decode()
    np.testing.assert_array_equal(by_voice, spoken(speech_server, ref_audio=url))


def test_with_a_transcript_the_recording_is_continued(speech_server: Server) -> None:
    with registered(speech_server, recording(2.0)):
        reference = spoken(speech_server, voice="Anna")
    with registered(speech_server, recording(2.0), ref_text="la la la.") as voice:
        assert voice["ref_text"] == "la la la."
        continued = spoken(speech_server, voice="Anna")
    assert len(continued) != len(reference) or np.abs(continued - reference).max() > 0.01


def test_the_stored_latents_are_the_encoders(speech_server: Server) -> None:
    samples, _ = soundfile.read(io.BytesIO(recording(1.6)), dtype="float32")
    with registered(speech_server, recording(1.6)) as voice:
        path = speech_server.log.parent / "voices" / f"{voice['id']}.safetensors"
        with safe_open(path, "numpy") as file:
            latents, stored = file.get_tensor("latents"), file.get_tensor("samples")
    np.testing.assert_array_equal(stored, samples)
    patch, dim = latents.shape[1:]
    padded = np.pad(samples, (0, len(latents) * patch * 640 - len(samples)))
    expected = load_speech_nets(TRAINED_TINY).audio_vae.encode(torch.from_numpy(padded)[None])
    np.testing.assert_allclose(latents.reshape(-1, dim), expected[0], atol=1e-4)


def test_openais_names_are_voices_that_stay(speech_server: Server) -> None:
    first = {name: spoken(speech_server, voice=name, seed=None) for name in ("alloy", "nova")}
    again = spoken(speech_server, voice="alloy", seed=None)
    np.testing.assert_array_equal(first["alloy"], again)
    n = min(len(samples) for samples in first.values())
    assert np.abs(first["alloy"][:n] - first["nova"][:n]).max() > 0.01


def test_a_registered_voice_takes_openais_name_over(speech_server: Server) -> None:
    built_in = spoken(speech_server, voice="alloy")
    with registered(speech_server, recording(2.0), name="alloy"):
        taken_over = spoken(speech_server, voice="alloy")
        assert [entry["name"] for entry in listed(speech_server)].count("alloy") == 1
    n = min(len(built_in), len(taken_over))
    assert np.abs(built_in[:n] - taken_over[:n]).max() > 0.01
    np.testing.assert_array_equal(spoken(speech_server, voice="alloy"), built_in)
    assert_refused(delete(speech_server, "alloy"), 400, "voice")


@pytest.mark.parametrize(
    ("form", "audio", "status", "param"),
    [
        ({"name": "Anna"}, recording(), 400, "consent"),
        (FORM | {"consent": " "}, recording(), 400, "consent"),
        (FORM | {"consent": "no"}, recording(), 400, "consent"),
        (FORM | {"consent": "x" * 1001}, recording(), 400, "consent"),
        ({"consent": "yes"}, recording(), 400, "name"),
        (FORM | {"name": ""}, recording(), 400, "name"),
        (FORM | {"name": "../../voice"}, recording(), 400, "name"),
        (FORM | {"name": "a" * 65}, recording(), 400, "name"),
        (FORM | {"ref_text": "x" * 4097}, recording(), 400, "ref_text"),
        (FORM, None, 400, "audio_sample"),
        (FORM, b"", 400, "audio_sample"),
        (FORM, recording(0.9), 400, "audio_sample"),
        (FORM, recording(30.2), 400, "audio_sample"),
        (FORM, b"these bytes are no recording" * 50, 415, "audio_sample"),
        (FORM, bytes(10_000_001), 413, "audio_sample"),
        (FORM, bytes(20_000_000), 413, None),
    ],
    ids=lambda value: None if isinstance(value, dict | bytes) else str(value),
)
def test_bad_uploads(
    speech_server: Server, form: dict[str, str], audio: bytes | None, status: int, param: str
) -> None:
    assert_refused(send_voice(speech_server, form, audio), status, param)
    assert len(listed(speech_server)) == len(OPENAI_VOICES)


def test_a_name_can_be_had_once(speech_server: Server) -> None:
    with registered(speech_server, recording(2.0)):
        assert_refused(send_voice(speech_server, FORM, recording(3.0)), 400, "name")


def test_the_log_holds_neither_names_nor_texts(speech_server: Server) -> None:
    secret = "zebras whisper"
    with registered(speech_server, recording(), name=secret, ref_text=secret):
        spoken(speech_server, voice=secret, input=secret)
        send_voice(speech_server, FORM | {"consent": "no", "name": secret}, recording())
        send_audio_speech_request(speech_server, REQUEST | {"input": secret, "voice": "nobody"})
    log = speech_server.log.read_text()
    assert "POST /v1/audio/speech" in log  # requests are logged, their contents are not
    assert secret not in log
    assert secret.replace(" ", "%20") not in log


def test_unknown_voices_are_refused(speech_server: Server) -> None:
    for voice in ("nobody", {"id": "voice_" + "0" * 24}):
        reply = send_audio_speech_request(speech_server, REQUEST | {"voice": voice})
        assert_refused(reply, 400, "voice")
