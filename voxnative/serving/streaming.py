"""A response that sends pieces as they come, and ends its generator whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing, suppress
from types import TracebackType

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from vllm.logger import init_logger

from voxnative.serving.http_errors import RequestFailed
from voxnative.serving.limits import while_connected

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


class Patience:
    """Ends a block when one of its waits takes too long.

    ``asyncio.timeout`` around each of many short waits costs more than they do; here one timer
    looks whether somebody waits, and is set again for when that would be too long.

    Args:
        limit_s: longest wait.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._waits_since: float | None = None
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> Patience:
        await self._timeout.__aenter__()
        self._timer = self._loop.call_later(self._limit_s, self._look)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Raises TimeoutError where a wait was too long."""
        self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    async def wait(self, work: Awaitable[None]) -> None:
        """Await `work`, at most `limit_s`."""
        self._waits_since = self._loop.time()
        await work
        self._waits_since = None

    def _look(self) -> None:
        now = self._loop.time()
        since = now if self._waits_since is None else self._waits_since
        if now - since >= self._limit_s:
            self._timeout.reschedule(now)
        else:
            self._timer = self._loop.call_at(since + self._limit_s, self._look)


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As `StreamingResponse`, without tasks for the pieces and a group around them."""
        with suppress(RequestFailed):  # the client went away
            await while_connected(Request(scope, receive), self.stream_response(send))

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
                async with Patience(self._reader_timeout_s) as patience:
                    async for piece in pieces:
                        message = {"type": "http.response.body", "body": piece, "more_body": True}
                        await patience.wait(send(message))
            except TimeoutError:
                logger.warning(
                    "A client read nothing for %g s; its stream is closed.", self._reader_timeout_s
                )
                return
            except RequestFailed as error:
                logger.warning("A stream ended early: %s", error.body["error"]["code"])
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
