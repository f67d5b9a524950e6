"""Talking to a server in the tests: start one, send requests, decode and check the answers.

Test modules hold request dicts; how they are sent and what holds for every answer is here.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import psutil
import pytest
import soundfile
import yaml
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

START_S = 480
ANSWER_S = 240
LENGTH_TOLERANCE_S = 0.030
SPEECH = "/v1/audio/speech"
VOICES = "/v1/audio/voices"
MEDIA_HOST = "127.0.0.2"
CONTENT_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(frozen=True)
class Server:
    """A server process.

    Attributes:
        address: "http://host:port".
        process: of the front end; the engine is its child.
        log: file with everything that it printed.
    """

    address: str
    process: subprocess.Popen
    log: Path

    def engines(self) -> list[psutil.Process]:
        """The process of each replica of the engine."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if "EngineCor" in title(child)]

    def engine(self) -> psutil.Process:
        """The engine's process."""
        return self.engines()[0]

    def metric(self, name: str, **labels: str) -> float:
        """One sample of ``/metrics``."""
        text = httpx.get(f"{self.address}/metrics").text
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        for line in text.splitlines():
            head, _, value = line.rpartition(" ")
            if head.split("{")[0] == name and all(label in head for label in wanted):
                return float(value)
        raise AssertionError(f"no metric {name} {labels}")


def title(process: psutil.Process) -> str:
    """A process's name and command line; empty where it is gone."""
    try:
        return " ".join([process.name(), *process.cmdline()])
    except psutil.Error:
        return ""


@contextmanager
def serve(command: list[str], folder: Path, **environment: str) -> Iterator[Server]:
    """Run a server command until the block ends; `--host` and `--port` are added."""
    port = free_port()
    log = folder / "server.log"
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **environment}
        )
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        _wait_until_healthy(server)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_until_healthy(server: Server) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.process.poll() is None, server.log.read_text()[-3000:]
        try:
            if httpx.get(f"{server.address}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"not healthy after {START_S} s: {server.log.read_text()[-3000:]}")


def voxnative_command(folder: Path, section: dict[str, Any], **engine: Any) -> list[str]:
    """``voxnative serve`` on the shipped checkpoint with a deploy file of these keys."""
    deploy = folder / "deploy.yaml"
    section = {"voices_dir": str(folder / "voices"), **section}
    deploy.write_text(yaml.safe_dump({**engine, "voxnative": section}))
    script = Path(sys.executable).with_name("voxnative")
    return [str(script), "serve", "--deploy", str(deploy)]


@pytest.fixture(scope="session")
def speech_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The shipped checkpoint behind ``voxnative serve``, eight at once, as all tests share it.

    ``ref_audio`` may name files of the folder "media" and URLs of one loopback address.
    """
    folder = tmp_path_factory.mktemp("speech_server")
    (folder / "media").mkdir()
    section = {
        "max_queue": 64,
        "allowed_media_dirs": [str(folder / "media")],
        "allowed_media_hosts": [MEDIA_HOST],
    }
    with serve(voxnative_command(folder, section, max_num_seqs=8), folder) as server:
        yield server


@dataclass
class Reply:
    """An answer as it came.

    Attributes:
        pieces: bytes of each read, none empty.
        times_s: when each came, from the sending on.
    """

    status: int
    headers: httpx.Headers
    pieces: list[bytes] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def error(self) -> dict[str, Any]:
        """Content of OpenAI's error shape."""
        content = json.loads(self.body)
        assert list(content) == ["error"]
        assert set(content["error"]) == {"message", "type", "param", "code"}
        return content["error"]

    def events(self) -> list[dict[str, Any]]:
        """The events of an SSE answer."""
        assert self.headers["content-type"].startswith("text/event-stream")
        blocks = self.body.decode().split("\n\n")
        assert blocks.pop() == ""
        assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
        return [json.loads(block.removeprefix("data: ")) for block in blocks]


def send_audio_speech_request(server: Server, request: dict[str, Any], path: str = SPEECH) -> Reply:
    """Send one request and read its answer to the end."""
    started = time.perf_counter()
    with (
        httpx.Client(base_url=server.address, timeout=ANSWER_S) as client,
        client.stream("POST", path, json=request) as answer,
    ):
        reply = Reply(answer.status_code, answer.headers)
        for piece in answer.iter_raw():
            reply.pieces.append(piece)
            reply.times_s.append(time.perf_counter() - started)
    return reply


async def send_many(server: Server, requests: list[dict[str, Any]]) -> list[Reply]:
    """Send all requests at once."""
    import asyncio

    limits = httpx.Limits(max_connections=len(requests))
    async with httpx.AsyncClient(
        base_url=server.address, timeout=ANSWER_S, limits=limits
    ) as client:

        async def one(request: dict[str, Any]) -> Reply:
            async with client.stream("POST", SPEECH, json=request) as answer:
                reply = Reply(answer.status_code, answer.headers)
                async for piece in answer.aiter_raw():
                    reply.pieces.append(piece)
            return reply

        return await asyncio.gather(*(one(request) for request in requests))


def decode(body: bytes, response_format: str, sample_rate_hz: int = 0) -> tuple[np.ndarray, int]:
    """Samples float32 [n] and their rate, with decoders that are not the server's encoders.

    libsndfile reads WAV, FLAC, Opus and MP3. FFmpeg's decoder stands in for what libsndfile
    cannot read: AAC, and FLAC whose header does not know its length.
    """
    if response_format == "pcm":
        return np.frombuffer(body, "<i2").astype(np.float32) / 32768, sample_rate_hz
    if response_format == "aac" or (response_format == "flac" and not _flac_length(body)):
        with av.open(io.BytesIO(body), format=response_format) as container:
            to_float = av.AudioResampler(format="fltp")
            frames = [f for frame in container.decode(audio=0) for f in to_float.resample(frame)]
            samples = np.concatenate([frame.to_ndarray()[0] for frame in frames])
            return samples, container.streams.audio[0].rate
    with soundfile.SoundFile(io.BytesIO(body)) as sound:
        blocks = []
        while len(block := sound.read(sound.samplerate, dtype="float32")):
            blocks.append(block)
        return np.concatenate(blocks), sound.samplerate


def _flac_length(body: bytes) -> int:
    """Samples of a FLAC file by its STREAMINFO block; 0 is "unknown"."""
    return int.from_bytes(body[21:26], "big") & (2**36 - 1)


def recording(seconds: float = 2.0, pitch_hz: float = 150.0, rate_hz: int = 16_000) -> bytes:
    """A voice-like recording as a WAV file."""
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    harmonics = sum(np.sin(2 * np.pi * k * pitch_hz * t) / k for k in range(1, 7))
    buffer = io.BytesIO()
    samples = 0.1 * harmonics * (1 + 0.3 * np.sin(2 * np.pi * 3 * t))
    soundfile.write(buffer, samples, rate_hz, format="WAV")
    return buffer.getvalue()


def send_voice(server: Server, form: dict[str, str], audio_sample: bytes | None) -> Reply:
    """Upload a voice as a multipart form."""
    files = {} if audio_sample is None else {"audio_sample": ("voice.wav", audio_sample)}
    # With a file the form is multipart; without one it must be all the same.
    parts = {name: (None, value) for name, value in form.items()} | files
    answer = httpx.post(f"{server.address}{VOICES}", files=parts, timeout=ANSWER_S)
    return Reply(answer.status_code, answer.headers, [answer.content])


@dataclass
class SocketReply:
    """What came over a WebSocket.

    Attributes:
        events: every JSON message.
        audio: bytes of each clause, from binary frames or from base64.
        close_code: of the server's closing frame.
    """

    events: list[dict[str, Any]] = field(default_factory=list)
    audio: list[bytes] = field(default_factory=list)
    close_code: int | None = None

    def add(self, frame: str | bytes) -> str:
        """Take a frame; returns its type."""
        if isinstance(frame, bytes):
            self.audio[-1] += frame
            return "audio"
        event = json.loads(frame)
        self.events.append(event)
        if event["type"] == "audio.start":
            assert event["sentence_index"] == len(self.audio)
            self.audio.append(b"")
        elif event["type"] == "audio.delta":
            self.audio[-1] += base64.b64decode(event["audio"])
        elif event["type"] == "audio.done":
            assert event["n_bytes"] == len(self.audio[-1])
        return event["type"]

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


def send_over_websocket(server: Server, messages: list[Any]) -> SocketReply:
    """Send all messages, then read until the server closes; strings and bytes go as they are."""
    reply = SocketReply()
    with open_websocket(server) as socket:
        with suppress(ConnectionClosed):  # refused before the last one; what came is still read
            for message in messages:
                socket.send(message if isinstance(message, str | bytes) else json.dumps(message))
        try:
            while True:
                reply.add(socket.recv(timeout=ANSWER_S))
        except ConnectionClosed as closed:
            reply.close_code = closed.rcvd.code if closed.rcvd else None
    return reply


def open_websocket(server: Server) -> ClientConnection:
    """A connection to ``/v1/audio/speech/stream``."""
    return connect(f"{server.address.replace('http', 'ws', 1)}{SPEECH}/stream")


def assert_audio_reply(reply: Reply, request: dict[str, Any], model_hz: int) -> np.ndarray:
    """What holds for every answer with audio; returns its samples.

    Args:
        reply: the answer.
        request: what was sent.
        model_hz: rate of the model's samples.
    """
    assert reply.status == 200, reply.body[:300]
    name = request.get("response_format", "mp3")
    assert reply.headers["content-type"].startswith(CONTENT_TYPES[name])
    rate_hz = int(reply.headers["x-audio-sample-rate"])
    assert reply.headers["x-audio-channels"] == "1"
    samples, decoded_hz = decode(reply.body, name, rate_hz)
    assert decoded_hz == rate_hz
    if "sample_rate" in request:
        assert rate_hz == request["sample_rate"]
    elif name in ("pcm", "wav", "flac"):
        assert rate_hz == model_hz
    assert samples.ndim == 1
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() > 0.01
    return samples


def assert_refused(reply: Reply, status: int, param: str | None) -> None:
    """What holds for every answer to a bad request."""
    assert reply.status == status, reply.body[:300]
    error = reply.error
    assert error["param"] == param
    assert error["type"]
    if param is not None:
        assert f"field '{param}'" in error["message"]
