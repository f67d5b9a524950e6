"""``POST /v1/audio/speech``: every format, whole and streamed, says the same for as long."""

from __future__ import annotations

import base64
import io
import json
import struct
import wave

import numpy as np
import pytest

from tests.hearing import heard_words
from tests.helpers.runtime import (
    LENGTH_TOLERANCE_S,
    Server,
    assert_audio_reply,
    decode,
    send_audio_speech_request,
)

pytestmark = [pytest.mark.tts, pytest.mark.hardware_test(res="cpu", num_cards=0)]

MODEL_HZ = 16_000
TEXT = "the weather is very nice today."
WORDS = {"weather", "very", "nice", "today"}
# The seed makes the audio the same in every request, so that answers can be compared.
REQUEST = {"model": "tiny", "input": TEXT, "seed": 1, "cfg_value": 3.0}
FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")


@pytest.fixture(scope="module")
def reference(speech_server: Server) -> np.ndarray:
    """The same speech as raw samples."""
    request = {**REQUEST, "response_format": "pcm"}
    return assert_audio_reply(send_audio_speech_request(speech_server, request), request, MODEL_HZ)


@pytest.mark.core_model
@pytest.mark.advanced_model
def test_smoke(speech_server: Server) -> None:
    """The least that a client sends: MP3, streamed, with the words in it."""
    request = {"model": "tts-1", "input": TEXT, "voice": "alloy"}
    reply = send_audio_speech_request(speech_server, request)
    samples = assert_audio_reply(reply, request, MODEL_HZ)
    assert reply.headers["transfer-encoding"] == "chunked"
    assert len(reply.pieces) > 3
    assert 0.5 < len(samples) / 48_000 < 6


@pytest.mark.advanced_model
@pytest.mark.parametrize("response_format", FORMATS)
def test_a_format(speech_server: Server, reference: np.ndarray, response_format: str) -> None:
    """Streamed and whole hold the same samples, the right length, and the words."""
    request = {**REQUEST, "response_format": response_format}
    decoded = []
    for stream in (True, False):
        reply = send_audio_speech_request(speech_server, {**request, "stream": stream})
        assert ("content-length" in reply.headers) is not stream
        decoded.append(assert_audio_reply(reply, request, MODEL_HZ))
        rate_hz = int(reply.headers["x-audio-sample-rate"])
        excess_s = len(decoded[-1]) / rate_hz - len(reference) / MODEL_HZ
        assert abs(excess_s) < LENGTH_TOLERANCE_S
        if stream:
            # First bytes come long before the last.
            assert reply.times_s[0] < 0.7 * reply.times_s[-1]
    assert np.array_equal(*decoded)
    assert heard_words(decoded[0], rate_hz) >= WORDS


@pytest.mark.advanced_model
def test_pcm_says_what_it_is(speech_server: Server) -> None:
    request = {**REQUEST, "response_format": "pcm", "sample_rate": 24_000}
    reply = send_audio_speech_request(speech_server, request)
    assert reply.headers["content-type"] == "audio/pcm;rate=24000"
    assert reply.headers["x-audio-sample-rate"] == "24000"
    assert reply.headers["x-audio-encoding"] == "s16le"
    assert len(reply.body) % 2 == 0


@pytest.mark.advanced_model
def test_wav_headers(speech_server: Server) -> None:
    """Unknown sizes while streaming, once; true sizes in a finished file, the default."""
    request = {**REQUEST, "response_format": "wav"}
    streamed = send_audio_speech_request(speech_server, {**request, "stream": True}).body
    whole = send_audio_speech_request(speech_server, request).body
    assert streamed.count(b"RIFF") == 1
    assert struct.unpack_from("<I", streamed, 4) == struct.unpack_from("<I", streamed, 40)
    assert struct.unpack_from("<I", streamed, 4) == (0xFFFFFFFF,)
    assert struct.unpack_from("<I", whole, 4) == (len(whole) - 8,)
    with wave.open(io.BytesIO(whole)) as file:
        assert file.getnframes() == (len(whole) - 44) // 2
        assert file.getparams()[:3] == (1, 2, MODEL_HZ)
    assert streamed[44:] == whole[44:]


@pytest.mark.advanced_model
@pytest.mark.parametrize("response_format", ["pcm", "mp3"])
def test_sse(speech_server: Server, reference: np.ndarray, response_format: str) -> None:
    request = {**REQUEST, "response_format": response_format, "stream_format": "sse"}
    *deltas, done = send_audio_speech_request(speech_server, request).events()
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert len(deltas) > 3
    body = b"".join(base64.b64decode(event["audio"], validate=True) for event in deltas)
    rate_hz = MODEL_HZ if response_format == "pcm" else 48_000
    samples, _ = decode(body, response_format, rate_hz)
    assert abs(len(samples) / rate_hz - len(reference) / MODEL_HZ) < LENGTH_TOLERANCE_S
    assert done["type"] == "speech.audio.done"
    usage = done["usage"]
    assert usage["output_tokens"] == round(len(reference) / MODEL_HZ / 0.16)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.advanced_model
@pytest.mark.parametrize("speed", [0.8, 1.5])
def test_speed(speech_server: Server, reference: np.ndarray, speed: float) -> None:
    """Streamed too, and the words stay."""
    request = {**REQUEST, "response_format": "pcm", "speed": speed}
    reply = send_audio_speech_request(speech_server, request)
    samples = assert_audio_reply(reply, request, MODEL_HZ)
    assert len(reply.pieces) > 3
    assert len(samples) * speed / len(reference) == pytest.approx(1, abs=0.03)
    assert heard_words(samples, MODEL_HZ) >= {"weather", "nice"}


@pytest.mark.advanced_model
def test_another_rate_is_resampled(speech_server: Server, reference: np.ndarray) -> None:
    import soxr

    request = {**REQUEST, "response_format": "pcm", "sample_rate": 24_000}
    samples = assert_audio_reply(
        send_audio_speech_request(speech_server, request), request, MODEL_HZ
    )
    expected = soxr.resample(reference, MODEL_HZ, 24_000)
    assert abs(len(samples) - len(expected)) <= 1
    n = min(len(samples), len(expected))
    assert np.abs(samples[:n] - expected[:n]).max() < 1e-3


@pytest.mark.advanced_model
def test_batch(speech_server: Server, reference: np.ndarray) -> None:
    """Results in the order of the items; what an item leaves out is the batch's."""
    request = {
        "items": [{"input": "yes."}, {"input": TEXT}, {"input": "no.", "seed": 4}],
        "response_format": "wav",
        "seed": 1,
        "cfg_value": 3.0,
    }
    reply = send_audio_speech_request(speech_server, request, "/v1/audio/speech/batch")
    assert reply.status == 200
    answer = json.loads(reply.body)
    assert (answer["total"], answer["succeeded"], answer["failed"]) == (3, 3, 0)
    assert [result["index"] for result in answer["results"]] == [0, 1, 2]
    assert {result["media_type"] for result in answer["results"]} == {"audio/wav"}
    samples, _ = decode(base64.b64decode(answer["results"][1]["audio_data"]), "wav")
    assert len(samples) == len(reference)
    assert np.abs(samples - reference).max() < 1e-3


@pytest.mark.advanced_model
def test_the_settings_reach_the_model(speech_server: Server, reference: np.ndarray) -> None:
    request = {**REQUEST, "response_format": "pcm"}
    changes = (
        {"seed": 2},
        {"cfg_value": 1.0},
        {"inference_timesteps": 4},
        {"temperature": 0.5},
        {"max_new_tokens": 3},
    )
    for change in changes:
        changed = {**request, **change}
        reply = send_audio_speech_request(speech_server, changed)
        samples = assert_audio_reply(reply, changed, MODEL_HZ)
        n = min(len(samples), len(reference))
        differs = np.abs(samples[:n] - reference[:n]).max() > 1e-2
        assert differs or len(samples) != len(reference), change
    assert len(samples) == 3 * 0.16 * MODEL_HZ
