"""Text -> ids: the checkpoint's Llama tokenizer, with Chinese words split into characters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxnative.errors import CheckpointError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")
WORD_START = "▁"  # SentencePiece's mark of a preceding space


class TextTokenizer:
    """Encodes text as the model was trained: no special tokens, one Chinese character a token.

    Source: voxcpm 2.0.3, `mask_multichar_chinese_tokens`.
    """

    def __init__(self, llama: Any) -> None:
        self._llama = llama
        # The Python layer above it would go by the tokens' names and back to their ids.
        self._fast = llama.backend_tokenizer
        self._fast.no_truncation()
        self._fast.no_padding()
        vocabulary = llama.get_vocab()
        words = {token for token in vocabulary if _is_chinese_word(token)}
        bare = {token: token.replace(WORD_START, "") for token in vocabulary}
        self._characters = {
            vocabulary[token]: llama.convert_tokens_to_ids(list(word))
            for token, word in bare.items()
            if word in words
        }

    @classmethod
    def from_dir(cls, path: str | Path) -> TextTokenizer:
        """Load the tokenizer of a checkpoint directory.

        Raises:
            CheckpointError: the tokenizer's files are missing or unreadable.
        """
        path = Path(path)
        if not any((path / name).is_file() for name in TOKENIZER_FILES):
            raise CheckpointError(f"no {' or '.join(TOKENIZER_FILES)} in '{path}'", path)
        from transformers import LlamaTokenizerFast

        try:
            return cls(LlamaTokenizerFast.from_pretrained(path, local_files_only=True))
        except Exception as error:  # the tokenizers library raises bare Exceptions
            raise CheckpointError(
                f"cannot read the tokenizer in '{path}': {error}", path
            ) from error

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; unknown characters become the vocabulary's unknown id."""
        ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        if self._characters.keys().isdisjoint(ids):
            return ids
        split: list[int] = []
        for token_id in ids:
            split.extend(self._characters.get(token_id, (token_id,)))
        return split


def _is_chinese_word(token: str) -> bool:
    return len(token) >= 2 and all("\u4e00" <= char <= "\u9fff" for char in token)
