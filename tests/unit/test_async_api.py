"""Building a request inside the event loop, or beside it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from voxnative.async_api import _in_time
from voxnative.config import VoxConfig
from voxnative.errors import TextError
from voxnative.speech_request import QUICK_CHARS, RequestBuilder, SpeechRequest
from voxnative.tokenizer import TextTokenizer


class Observed:
    """A builder that notes the thread it is called in."""

    def __init__(self, config: VoxConfig, tokenizer: TextTokenizer) -> None:
        self._builder = RequestBuilder(config, tokenizer, context_len=4096)
        self.threads: list[threading.Thread] = []

    def build(self, text: str, **arguments: Any) -> SpeechRequest:
        self.threads.append(threading.current_thread())
        return self._builder.build(text, **arguments)


@pytest.fixture
def observed(tiny_config: VoxConfig, tiny_tokenizer: TextTokenizer) -> Observed:
    return Observed(tiny_config, tiny_tokenizer)


def test_short_texts_never_leave_the_event_loop(observed: Observed) -> None:
    """Nor do they wait for it: the coroutine ends in its first step."""
    building = _in_time(observed.build, "Hello there.", {"seed": 7})
    with pytest.raises(StopIteration) as ended:
        building.send(None)
    assert ended.value.value.seed == 7
    assert observed.threads == [threading.current_thread()]


def test_long_texts_do_not_hold_the_event_loop_up(observed: Observed) -> None:
    text = "word " * (QUICK_CHARS // 4)
    request = asyncio.run(_in_time(observed.build, text, {}))
    assert request.prompt.n_target_tokens > QUICK_CHARS
    (thread,) = observed.threads
    assert thread is not threading.current_thread()


@pytest.mark.parametrize("text", ["...", "..." * QUICK_CHARS])
def test_errors_are_the_same_either_way(observed: Observed, text: str) -> None:
    with pytest.raises(TextError, match="a letter or a digit"):
        asyncio.run(_in_time(observed.build, text, {}))
