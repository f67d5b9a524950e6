"""The long tail: rates and speeds of every format, and requests that nobody thought of."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck

from tests.helpers.runtime import Server, assert_audio_reply, send_audio_speech_request

pytestmark = [
    pytest.mark.tts,
    pytest.mark.full_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

RATES_HZ = {
    "mp3": (16_000, 24_000, 44_100),
    "opus": (8_000, 16_000, 24_000),
    "aac": (24_000, 44_100),
    "flac": (8_000, 48_000),
    "wav": (8_000, 22_050),
    "pcm": (11_025, 24_000),
}
N_PATCHES = 5
PATCH_S = 0.16
CASES = [(name, rate) for name, rates in RATES_HZ.items() for rate in rates]


@pytest.mark.parametrize(("response_format", "rate_hz"), CASES)
def test_rates_and_speeds(speech_server: Server, response_format: str, rate_hz: int) -> None:
    for speed, stream in itertools.product((0.25, 1.0, 4.0), (True, False)):
        request = {
            "input": "good morning.",
            "seed": 1,
            "max_new_tokens": N_PATCHES,
            "response_format": response_format,
            "sample_rate": rate_hz,
            "speed": speed,
            "stream": stream,
        }
        reply = send_audio_speech_request(speech_server, request)
        samples = assert_audio_reply(reply, request, 16_000)
        length_s = len(samples) / rate_hz
        slack_s = 1_152 / rate_hz + 0.01  # a frame of AAC or MP3, and what is put in front
        assert abs(length_s - N_PATCHES * PATCH_S / speed) < slack_s


def test_nothing_that_a_client_sends_is_a_servers_error(speech_server: Server) -> None:
    """Schemathesis against the server's OpenAPI: no 5xx. Long speech is cut short."""
    schema = schemathesis.openapi.from_url(f"{speech_server.address}/openapi.json")
    operations = [
        found.ok() for found in schema.include(path_regex="^/v1/audio").get_all_operations()
    ]
    assert len(operations) >= 4
    for operation in operations:
        _no_server_error(operation)


def _no_server_error(operation: Any) -> None:
    @hypothesis.settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @hypothesis.given(case=operation.as_strategy())
    def send(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("max_new_tokens"), int | None):
            case.body["max_new_tokens"] = min(case.body.get("max_new_tokens") or 2, 2)
        response = case.call(timeout=120)
        assert response.status_code < 500, f"{operation.label}: {response.text[:500]}"

    send()
