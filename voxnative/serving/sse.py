"""``stream_format: "sse"``: OpenAI's three events around the pieces of any format."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from voxnative.serving.http_errors import RequestFailed
from voxnative.serving.utterance import Utterance

MEDIA_TYPE = "text/event-stream"
# Proxies must neither keep the events nor collect them.
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def events(
    pieces: AsyncGenerator[bytes, None], utterance: Utterance
) -> AsyncGenerator[bytes, None]:
    """``speech.audio.delta`` for each piece, then ``speech.audio.done`` or ``.error``."""
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                yield _event("speech.audio.delta", audio=base64.b64encode(piece).decode())
    except RequestFailed as error:
        yield _event("speech.audio.error", **error.body)
        return
    yield _event("speech.audio.done", usage=usage(utterance), finish_reason=utterance.finish_reason)


def usage(utterance: Utterance) -> dict[str, int]:
    """Positions of the prompt, patches of audio, and their sum."""
    n_in, n_out = utterance.n_prompt_tokens, utterance.n_patches
    return {"input_tokens": n_in, "output_tokens": n_out, "total_tokens": n_in + n_out}


def _event(kind: str, **content: Any) -> bytes:
    return f"data: {json.dumps({'type': kind, **content})}\n\n".encode()
