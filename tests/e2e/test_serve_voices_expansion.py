"""Voices and keys in a second server, and the demo page with a server of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.helpers.runtime import (
    ANSWER_S,
    SPEECH,
    START_S,
    VOICES,
    Server,
    free_port,
    recording,
    send_audio_speech_request,
    send_voice,
    serve,
    voxnative_command,
)

pytestmark = [
    pytest.mark.tts,
    pytest.mark.full_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

KEY = {"Authorization": "Bearer a-key"}
REQUEST = {"input": "hello there.", "seed": 1, "voice": "Anna", "response_format": "pcm"}


@pytest.fixture(scope="module")
def second_server(
    speech_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Started after a voice was registered at the first; asks for a key."""
    form = {"name": "Anna", "consent": "agreed"}
    assert send_voice(speech_server, form, recording()).status == 200
    folder = tmp_path_factory.mktemp("second_server")
    section = {"voices_dir": str(speech_server.log.parent / "voices")}
    command = [*voxnative_command(folder, section), "--api-key", "a-key"]
    with serve(command, folder) as server:
        yield server
    httpx.delete(f"{speech_server.address}{VOICES}/Anna").raise_for_status()


def test_a_voice_survives_the_server_that_registered_it(
    speech_server: Server, second_server: Server
) -> None:
    first = send_audio_speech_request(speech_server, REQUEST)
    second = httpx.post(
        f"{second_server.address}{SPEECH}", json=REQUEST, headers=KEY, timeout=ANSWER_S
    )
    assert (first.status, second.status_code) == (200, 200)
    samples = [np.frombuffer(audio, "<i2") for audio in (first.body, second.content)]
    np.testing.assert_allclose(samples[0], samples[1], atol=4)


def test_every_route_asks_for_the_key(second_server: Server) -> None:
    url = second_server.address
    assert httpx.get(f"{url}{VOICES}").status_code == 401
    assert httpx.delete(f"{url}{VOICES}/Anna").status_code == 401
    assert send_voice(second_server, {"name": "B", "consent": "yes"}, recording()).status == 401
    assert httpx.post(f"{url}{SPEECH}", json=REQUEST).status_code == 401
    with pytest.raises(InvalidStatus) as caught:
        connect(f"{url.replace('http', 'ws', 1)}{SPEECH}/stream")
    assert caught.value.response.status_code == 401


def test_a_session_with_the_key(second_server: Server) -> None:
    url = f"{second_server.address.replace('http', 'ws', 1)}{SPEECH}/stream"
    with connect(url, additional_headers=KEY) as socket:
        socket.send(json.dumps({"type": "session.config", "voice": "Anna"}))
        socket.send(json.dumps({"type": "input.text", "text": "hello there."}))
        socket.send(json.dumps({"type": "input.done"}))
        frames = list(socket)
    assert sum(len(frame) for frame in frames if isinstance(frame, bytes)) > 8_000


def test_the_demo_starts_and_ends_a_server_of_its_own(tmp_path: Path) -> None:
    port = free_port()
    command = [Path(sys.executable).with_name("voxnative"), "demo", "--port", str(port)]
    with (tmp_path / "log").open("w") as output:
        demo = subprocess.Popen(command, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while not _answers(url):
            assert demo.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.5)
        family = psutil.Process(demo.pid).children(recursive=True)
        assert len(family) >= 2  # the server and its engine
        answer = httpx.post(f"{url}/speech", json={"input": "hello."}, timeout=ANSWER_S)
        assert int(answer.headers["X-Audio-Sample-Rate"]) == 16_000
        assert len(answer.content) > 8_000
    finally:
        demo.send_signal(signal.SIGTERM)
        demo.wait(60)
    _gone, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False
