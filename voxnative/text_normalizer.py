"""Numbers, dates, money and signs -> words, in English and Chinese, by the `wetext` package.

For checkpoints that get text as it is; the shipped one has an English front end of its own.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal

from voxnative.errors import MissingExtraError

_CHINESE = re.compile(r"[\u4e00-\u9fff]")


def to_words(text: str) -> str:
    """Write what is not a word as words; a text with a Chinese character is taken for Chinese.

    Source: voxcpm 2.0.3, ``utils/text_normalize.py:TextNormalizer`` (the language and wetext's
    settings; not its Markdown and bracket removal).

    Raises:
        MissingExtraError: `wetext` is not installed.
    """
    one_line = re.sub(r"\s+", " ", text)  # wetext joins lines without a space
    return _normalizer("zh" if _CHINESE.search(text) else "en").normalize(one_line)


@lru_cache(maxsize=2)
def _normalizer(language: Literal["zh", "en"]) -> Any:
    try:
        from wetext import Normalizer
    except ImportError as error:
        raise MissingExtraError("wetext", "wetext") from error
    return Normalizer(lang=language, operator="tn", remove_erhua=language == "zh")
