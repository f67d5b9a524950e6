"""Any server with OpenAI's speech endpoint, read as a client reads it: streamed PCM."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import numpy as np

from voxnative.bench.record import SpeechTask
from voxnative.bench.target import RequestError

CONNECT_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 600.0  # longest wait for a byte
BYTES_PER_SAMPLE = 2  # response_format "pcm" is 16 bit, little endian, mono
FULL_SCALE = np.float32(1 / 32768)
_RATE_IN_TYPE = re.compile(r"rate=(\d+)")


class HttpTarget:
    """One server.

    One process reads all streams, thousands of pieces a second, and must not become what is
    measured: aiohttp parses in C and takes a piece in a fraction of httpx's time (plan/LOG.md).

    Args:
        name: in the report.
        base_url: "http://host:port".
        endpoint: path of the speech route.
        extra_body: fields added to every request; None takes a field away.
        sample_rate_hz: where the answers do not state theirs.
        api_key: sent as a bearer token.
    """

    max_streams: int | None = None

    def __init__(
        self,
        name: str,
        base_url: str,
        endpoint: str,
        *,
        extra_body: Mapping[str, Any] | None = None,
        sample_rate_hz: int | None = None,
        api_key: str | None = None,
    ) -> None:
        self.name = name
        self.base_url = base_url.rstrip("/")
        self.endpoint = endpoint
        self._extra_body = dict(extra_body or {})
        self._sample_rate_hz = sample_rate_hz
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # No limit on connections: the load decides how many there are.
            connector=aiohttp.TCPConnector(limit=0),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=ANSWER_TIMEOUT_S
            ),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    def body(self, task: SpeechTask) -> dict[str, Any]:
        """The JSON of one request; what the matrix says goes before what the task implies."""
        body: dict[str, Any] = {
            "input": task.text,
            "response_format": "pcm",
            "stream": True,
            "seed": task.seed,
        }
        if task.reference is not None:
            body["ref_audio"] = _data_url(task.reference)
            body["ref_text"] = task.reference_text
        if task.description is not None:
            body["instructions"] = task.description
        body |= task.extra_body | self._extra_body
        return {key: value for key, value in body.items() if value is not None}

    async def speak(self, task: SpeechTask) -> AsyncGenerator[tuple[np.ndarray, int], None]:
        """See `Target.speak`; a piece is what there is to read, and may hold several chunks."""
        url, body = f"{self.base_url}{self.endpoint}", self.body(task)
        try:
            async with self._session.post(url, json=body) as answer:
                if answer.status != HTTPStatus.OK:
                    text = (await answer.read()).decode(errors="replace")
                    raise RequestError(f"HTTP {answer.status}: {text[:300]}")
                rate_hz = self._rate_of(answer)
                rest = b""
                async for data in answer.content.iter_any():
                    data = rest + data
                    n_whole = len(data) - len(data) % BYTES_PER_SAMPLE
                    rest = data[n_whole:]
                    if n_whole:
                        yield np.frombuffer(data[:n_whole], "<i2") * FULL_SCALE, rate_hz
                if rest:
                    raise RequestError("the answer ends inside a sample")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RequestError(f"{type(error).__name__}: {error}") from error

    def _rate_of(self, answer: aiohttp.ClientResponse) -> int:
        stated = answer.headers.get("x-audio-sample-rate")
        found = _RATE_IN_TYPE.search(answer.headers.get("content-type", ""))
        rate = stated or (found and found.group(1)) or self._sample_rate_hz
        if rate is None:
            raise RequestError(
                "the answer does not state its sample rate; valid: a peer with sample_rate_hz"
            )
        return int(rate)

    def facts(self) -> dict[str, Any]:
        """See `Target.facts`."""
        return {"url": self.base_url, "endpoint": self.endpoint}


def _data_url(path: str) -> str:
    kind = {".flac": "flac", ".mp3": "mpeg", ".ogg": "ogg"}.get(Path(path).suffix.lower(), "wav")
    return f"data:audio/{kind};base64,{base64.b64encode(Path(path).read_bytes()).decode()}"
