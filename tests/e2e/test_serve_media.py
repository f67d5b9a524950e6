"""``ref_audio`` over HTTP: three ways to give a recording, and none to reach anything else."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.runtime import (
    MEDIA_HOST,
    Server,
    assert_audio_reply,
    assert_refused,
    recording,
    send_audio_speech_request,
)

pytestmark = [
    pytest.mark.tts,
    pytest.mark.advanced_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

MODEL_HZ = 16_000
REQUEST = {"input": "hello there.", "seed": 1, "response_format": "pcm"}
WAV = recording(2.0)
DATA_URL = "data:audio/wav;base64," + base64.b64encode(WAV).decode()


@pytest.fixture(scope="module")
def media(speech_server: Server) -> Path:
    """The one folder that the server may read recordings from."""
    folder = speech_server.log.parent / "media"
    (folder / "voice.wav").write_bytes(WAV)
    (folder / "notes.wav").write_bytes(b"these are no samples" * 20)
    (folder / "link.wav").symlink_to(speech_server.log)
    return folder


@pytest.fixture(scope="module")
def site(media: Path) -> Iterator[str]:
    """The same files on the one host that the server may fetch from: "host:port"."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(media))

        def do_GET(self) -> None:
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", f"http://127.0.0.1:{server.server_port}/voice.wav")
                self.end_headers()
            else:
                super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((MEDIA_HOST, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"{MEDIA_HOST}:{server.server_port}"
    server.shutdown()
    server.server_close()


def spoken(server: Server, **fields: Any) -> np.ndarray:
    request = REQUEST | fields
    return assert_audio_reply(send_audio_speech_request(server, request), request, MODEL_HZ)


def test_three_ways_to_give_a_recording_say_the_same(
    speech_server: Server, media: Path, site: str
) -> None:
    by_data = spoken(speech_server, ref_audio=DATA_URL)
    np.testing.assert_array_equal(
        by_data, spoken(speech_server, ref_audio=str(media / "voice.wav"))
    )
    np.testing.assert_array_equal(
        by_data, spoken(speech_server, ref_audio=f"http://{site}/voice.wav")
    )
    plain = spoken(speech_server)
    assert len(plain) != len(by_data) or np.abs(plain - by_data).max() > 0.01


def test_with_its_text_the_recording_is_continued(speech_server: Server) -> None:
    continued = spoken(speech_server, ref_audio=DATA_URL, ref_text="la la la.")
    reference = spoken(speech_server, ref_audio=DATA_URL)
    assert len(continued) != len(reference) or np.abs(continued - reference).max() > 0.01


@pytest.mark.parametrize(
    ("ref_audio", "status"),
    [
        ("", 400),
        ("voice.wav", 400),
        ("file:///etc/passwd", 400),
        ("/etc/passwd", 400),
        ("{media}/../server.log", 400),
        ("{media}/link.wav", 400),
        ("{media}/none.wav", 400),
        ("{media}", 400),
        ("{media}/notes.wav", 415),
        ("data:audio/wav;base64,####", 400),
        ("data:text/plain;base64,AAAA", 415),
        ("data:audio/wav;base64," + base64.b64encode(b"no samples" * 99).decode(), 415),
        ("data:audio/wav;base64," + base64.b64encode(recording(31.0)).decode(), 400),
        ("data:audio/wav;base64," + base64.b64encode(bytes(10_000_002)).decode(), 413),
        ("http://{site}/none.wav", 400),
        ("http://{site}/notes.wav", 415),
        ("http://{site}/moved", 400),
        ("http://127.0.0.1:{port}/voice.wav", 400),
        ("http://localhost:{port}/voice.wav", 400),
        ("http://[::1]:{port}/voice.wav", 400),
        ("http://[::ffff:127.0.0.1]:{port}/voice.wav", 400),
        ("http://user@{site}/voice.wav", 400),
        ("http://169.254.169.254/latest/meta-data", 400),
        ("http://example.com/voice.wav", 400),
        ("ftp://{site}/voice.wav", 400),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_what_is_refused(
    speech_server: Server, media: Path, site: str, ref_audio: str, status: int
) -> None:
    """Nothing of it reaches the engine, and the answer shows no content."""
    places = {"media": media, "site": site, "port": site.split(":")[1]}
    source = ref_audio if ref_audio.startswith("data:") else ref_audio.format(**places)
    made = speech_server.metric("voxnative_audio_seconds_total")
    reply = send_audio_speech_request(speech_server, REQUEST | {"ref_audio": source})
    assert_refused(reply, status, "ref_audio")
    assert len(reply.body) < 1000
    assert speech_server.metric("voxnative_audio_seconds_total") == made


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"ref_text": "la la la."}, "ref_text"),
        ({"ref_audio": DATA_URL, "ref_text": " "}, "ref_text"),
        ({"ref_audio": 7}, "ref_audio"),
        (
            {"ref_audio": DATA_URL, "ref_text": "la.", "instructions": "a deep voice"},
            "instructions",
        ),
    ],
)
def test_fields_that_do_not_go_together(
    speech_server: Server, fields: dict[str, Any], param: str
) -> None:
    assert_refused(send_audio_speech_request(speech_server, REQUEST | fields), 400, param)
