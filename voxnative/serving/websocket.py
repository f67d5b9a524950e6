"""``/v1/audio/speech/stream``: speech while its text is still being written."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, NoReturn

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from voxnative.errors import ParameterError, TooLargeError
from voxnative.serving.adapters.base import SpeechCall
from voxnative.serving.clauses import ClauseSplitter
from voxnative.serving.http_errors import as_failure, timed_out
from voxnative.serving.pipeline import Answer, speak
from voxnative.serving.server import SpeechServer
from voxnative.serving.utterance import Utterance
from voxnative.serving.websocket_protocol import (
    DEFAULT_CONFIG,
    NORMAL,
    ClauseEvents,
    InputText,
    SessionConfig,
    close_code,
    error_event,
    parse_message,
    session_done,
)

router = APIRouter(tags=["speech"])

# Text that was sent and not yet spoken: half an hour of speech.
MAX_WAITING_CHARS = 32_768


@router.websocket("/v1/audio/speech/stream")
async def stream_speech(socket: WebSocket) -> None:
    """One session: texts in, audio out, until the text is spoken or the client goes away."""
    await socket.accept()
    session = SpeechSession(socket, socket.app.state.voxnative)
    with suppress(WebSocketDisconnect):  # nobody is left to be told
        try:
            await session.run()
        except Exception as error:
            failure = as_failure(error)
            if failure is None:
                raise
            await socket.send_json(error_event(failure))
            await socket.close(close_code(failure))
        else:
            await socket.close(NORMAL)


class SpeechSession:
    """Listens and speaks at the same time; whichever fails ends both.

    Args:
        socket: accepted.
        server: what all routes share.
    """

    def __init__(self, socket: WebSocket, server: SpeechServer) -> None:
        self._socket = socket
        self._server = server
        self._clauses: asyncio.Queue[str | None] = asyncio.Queue()
        self._n_waiting_chars = 0
        self._config: SessionConfig | None = None
        self._call: SpeechCall | None = None

    async def run(self) -> None:
        """Returns when everything is spoken.

        Raises:
            WebSocketDisconnect: the client went away; its request is aborted.
            InvalidRequestError: a message is not valid.
            RequestFailed: the queue is full, a time limit is over, the engine is dead.
            EngineError: the engine failed.
        """
        listening = asyncio.create_task(self._listen())
        speaking = asyncio.create_task(self._speak())
        tasks = (listening, speaking)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # Listening never ends but with an error, also after the end of the text.
        await (speaking if listening.cancelled() else listening)

    async def _listen(self) -> NoReturn:
        splitter = ClauseSplitter()
        is_done = False
        while True:
            message = parse_message(await self._receive(is_done))
            if is_done:
                raise ParameterError("type", message.type, "nothing after input.done")
            if isinstance(message, SessionConfig):
                if self._config is not None:
                    raise ParameterError("type", message.type, "session.config once, and first")
                await self._configure(message)
                continue
            if self._config is None:
                await self._configure(DEFAULT_CONFIG)
            if isinstance(message, InputText):
                self._enqueue(splitter.feed(message.text))
            else:
                is_done = True
                self._enqueue([*splitter.flush(), None])
            if self._n_waiting_chars + splitter.n_pending_chars > MAX_WAITING_CHARS:
                valid = f"at most {MAX_WAITING_CHARS} characters that wait to be spoken"
                raise TooLargeError("text", "more text", valid)

    def _enqueue(self, clauses: list[str] | list[str | None]) -> None:
        for clause in clauses:
            self._n_waiting_chars += len(clause or "")
            self._clauses.put_nowait(clause)

    async def _receive(self, is_done: bool) -> str | None:
        """Content of the next text frame; None for a binary frame."""
        limit_s = None if is_done else self._server.settings.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                frame = await self._socket.receive()
        except TimeoutError as error:
            raise timed_out(limit_s or 0.0) from error
        if frame["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(frame.get("code", NORMAL))
        return frame.get("text")

    async def _configure(self, config: SessionConfig) -> None:
        """Look up what the configuration names, once for all clauses, and check it."""
        call = await self._server.call(config.body("a"))
        await Utterance.create(self._server, call)
        self._config, self._call = config, call

    async def _speak(self) -> None:
        n_clauses = 0
        while (clause := await self._clauses.get()) is not None:
            assert self._config is not None
            assert self._call is not None
            answer = self._server.answer(self._config.body(clause))
            await self._speak_clause(ClauseEvents(n_clauses, clause, answer), self._call, answer)
            self._n_waiting_chars -= len(clause)
            n_clauses += 1
        await self._send(session_done(n_clauses))

    async def _speak_clause(self, events: ClauseEvents, call: SpeechCall, answer: Answer) -> None:
        assert self._config is not None
        utterance = await Utterance.create(self._server, replace(call, text=events.text))
        await self._send(events.start())
        n_bytes = 0
        async with aclosing(speak(utterance, answer)) as pieces:
            async for piece in pieces:
                n_bytes += len(piece)
                is_binary = self._config.audio_frames == "binary"
                await self._send(piece if is_binary else events.delta(piece))
        await self._send(events.done(n_bytes, utterance.finish_reason))

    async def _send(self, content: bytes | dict[str, Any]) -> None:
        """Send a frame; a client that reads nothing for long is given up."""
        try:
            async with asyncio.timeout(self._server.settings.reader_timeout_s):
                if isinstance(content, bytes):
                    await self._socket.send_bytes(content)
                else:
                    await self._socket.send_json(content)
        except TimeoutError as error:
            raise WebSocketDisconnect(reason="the client read nothing") from error
