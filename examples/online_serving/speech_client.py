"""Ask a running server for speech, with OpenAI's own client.

    python examples/online_serving/speech_client.py sync "Hello there." -o hello.mp3
    python examples/online_serving/speech_client.py stream "Hello there." -o hello.mp3
    python examples/online_serving/speech_client.py play "Hello there."
    python examples/online_serving/speech_client.py async "One." "Two." "Three." -o out
    echo "Text as it is being written." | python examples/online_serving/speech_client.py live

`play` and `live` play on the speakers with `sounddevice` (pip install sounddevice) as the audio
arrives; with `-o` they write a WAV file instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
import time
import wave
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAI
from websockets.sync.client import ClientConnection, connect

MODEL = "tts-1"  # any of OpenAI's speech models means the one that is served


def sync(client: OpenAI, args: argparse.Namespace) -> None:
    """Wait for the whole file."""
    answer = client.audio.speech.create(
        model=MODEL, voice=args.voice, input=args.text[0], response_format=_format(args.output)
    )
    args.output.write_bytes(answer.content)


def stream(client: OpenAI, args: argparse.Namespace) -> None:
    """Write the file while it is being spoken."""
    started = time.perf_counter()
    speech = client.audio.speech.with_streaming_response.create(
        model=MODEL, voice=args.voice, input=args.text[0], response_format=_format(args.output)
    )
    with speech as answer, args.output.open("wb") as file:
        for number, piece in enumerate(answer.iter_bytes()):
            if number == 0:
                print(f"first audio after {time.perf_counter() - started:.2f} s")
            file.write(piece)


def play(client: OpenAI, args: argparse.Namespace) -> None:
    """Play raw samples as they arrive; the server says at which rate."""
    speech = client.audio.speech.with_streaming_response.create(
        model=MODEL, voice=args.voice, input=args.text[0], response_format="pcm"
    )
    with speech as answer:
        rate_hz = int(answer.headers["X-Audio-Sample-Rate"])
        hear(answer.iter_bytes(), rate_hz, args.output)


async def many(client: AsyncOpenAI, args: argparse.Namespace) -> None:
    """Ask for all texts at once; each file is written when it is complete."""

    async def one(number: int, text: str) -> None:
        answer = await client.audio.speech.create(
            model=MODEL, voice=args.voice, input=text, response_format="mp3"
        )
        path = args.output / f"{number}.mp3"
        path.write_bytes(answer.content)
        print(path)

    args.output.mkdir(parents=True, exist_ok=True)
    await asyncio.gather(*(one(number, text) for number, text in enumerate(args.text)))


def live(args: argparse.Namespace) -> None:
    """Send standard input line by line and hear each clause as soon as it is complete."""
    url = args.server.replace("http", "ws", 1) + "/v1/audio/speech/stream"
    key = {"Authorization": f"Bearer {args.api_key}"}
    with connect(url, additional_headers=key) as socket:
        socket.send(json.dumps({"type": "session.config", "voice": args.voice}))
        threading.Thread(target=_write, args=(socket,), daemon=True).start()
        frames = iter(socket)
        start = next(frames)
        assert isinstance(start, str), "audio.start comes first"
        event = json.loads(start)
        if event["type"] != "audio.start":
            sys.exit(f"no speech: {event}")
        hear(_samples(frames), event["sample_rate"], args.output)


def _write(socket: ClientConnection) -> None:
    """Text goes out while audio comes in."""
    for line in sys.stdin:
        socket.send(json.dumps({"type": "input.text", "text": line}))
    socket.send(json.dumps({"type": "input.done"}))


def _samples(frames: Iterable[str | bytes]) -> Iterator[bytes]:
    for frame in frames:
        if isinstance(frame, bytes):
            yield frame
        elif json.loads(frame)["type"] == "error":
            sys.exit(f"the speech was broken off: {frame}")


def hear(pieces: Iterable[bytes], rate_hz: int, path: Path | None) -> None:
    """Play 16-bit samples, or write them to a WAV file."""
    if path is not None:
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate_hz)
            for piece in pieces:
                file.writeframes(piece)
        return
    import sounddevice

    with sounddevice.RawOutputStream(rate_hz, channels=1, dtype="int16") as speakers:
        rest = b""
        for piece in pieces:
            rest += piece
            n_whole = len(rest) // 2 * 2  # a piece may end inside a sample
            speakers.write(rest[:n_whole])
            rest = rest[n_whole:]


def _format(path: Path) -> Any:
    return path.suffix.removeprefix(".")


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a voxnative server for speech.")
    parser.add_argument("how", choices=["sync", "stream", "play", "async", "live"])
    parser.add_argument("text", nargs="*", default=["Hello there. This is a test."])
    parser.add_argument("-o", "--output", type=Path, help="file; for async a folder")
    parser.add_argument("--voice", default="alloy")
    parser.add_argument("--server", default="http://localhost:8000")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", "none"))
    args = parser.parse_args()
    if args.output is None and args.how in ("sync", "stream", "async"):
        args.output = Path("speech" if args.how == "async" else "speech.mp3")

    url = f"{args.server}/v1"
    if args.how == "live":
        live(args)
    elif args.how == "async":
        asyncio.run(many(AsyncOpenAI(base_url=url, api_key=args.api_key), args))
    else:
        run = {"sync": sync, "stream": stream, "play": play}[args.how]
        run(OpenAI(base_url=url, api_key=args.api_key), args)


if __name__ == "__main__":
    main()
