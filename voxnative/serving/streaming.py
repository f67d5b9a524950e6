"""A response that sends pieces as they come, and ends its generator whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import StreamingResponse
from starlette.types import Send
from vllm.logger import init_logger

from voxnative.serving.http_errors import RequestFailed

# Below vLLM's logger, whose level and format it takes over.
logger = init_logger("vllm.voxnative.streaming")


async def opened(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Wait for the first piece, then give all of them; errors before it are raised here."""
    try:
        first = await anext(pieces)
    except BaseException:
        await pieces.aclose()
        raise

    async def all_pieces() -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    return all_pieces()


class SpeechStream(StreamingResponse):
    """Pieces of audio or events, each sent as it comes.

    A client that goes away cancels the task that runs this; one that reads nothing for
    `reader_timeout_s` is given up. After an error the connection is closed without the last
    chunk, so that no client takes what it has for the whole.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        headers: Mapping[str, str],
        reader_timeout_s: float,
    ) -> None:
        super().__init__(pieces, headers=headers, media_type=media_type)
        self._pieces = pieces
        self._reader_timeout_s = reader_timeout_s

    async def stream_response(self, send: Send) -> None:
        """Source: starlette 1.10, ``StreamingResponse.stream_response``."""
        async with aclosing(self._pieces) as pieces:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            try:
                async for piece in pieces:
                    async with asyncio.timeout(self._reader_timeout_s):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
            except TimeoutError:
                logger.warning(
                    "A client read nothing for %g s; its stream is closed.", self._reader_timeout_s
                )
                return
            except RequestFailed as error:
                logger.warning("A stream ended early: %s", error.body["error"]["code"])
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
