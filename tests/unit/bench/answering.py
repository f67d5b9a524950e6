"""A small speech server on this machine that answers as the text tells it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import numpy as np

SAMPLES = np.arange(-800, 800, dtype="<i2") * 20
PAUSE_S = 0.2


class Answering(BaseHTTPRequestHandler):
    """Answers by what the text says; keeps the bodies."""

    protocol_version = "HTTP/1.1"
    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.bodies.append(body | {"authorization": self.headers.get("authorization")})
        what = body["input"]
        if what == "refuse":
            self.send_response(429)
            self.send_header("content-length", "4")
            self.end_headers()
            self.wfile.write(b"full")
            return
        self.send_response(200)
        if what != "no rate":
            self.send_header("content-type", "audio/pcm;rate=16000;channels=1")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        data = SAMPLES.tobytes()
        pieces = {"odd": [data[:1001], data[1001:]], "inside": [data[:-1]], "nothing": []}
        for piece in pieces.get(what, [data[:1600], data[1600:]]):
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()
            time.sleep(PAUSE_S)
        if what == "break":
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@contextmanager
def answering_server() -> Iterator[str]:
    """Its address, while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
