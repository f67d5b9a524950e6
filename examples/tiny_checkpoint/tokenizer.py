"""The character tokenizer: letters, simple punctuation and VoxCPM2's special ids in 128 entries.

Capital letters have ids of their own (some readers of `tokenizer.json` ignore its normaliser),
but training sees lower case only and `export` copies each small letter's embedding to its
capital, so that the model does not know case.
"""

from __future__ import annotations

import json
import string
from pathlib import Path

SPACE, UNKNOWN_ID = "▁", 0
FIRST_LETTER_ID, FIRST_CAPITAL_ID = 4, 60
PUNCTUATION = "'.,?!-;"
N_IDS = 128


def vocabulary() -> dict[str, int]:
    """Return token -> id. Ids 101..104 are VoxCPM2's audio markers."""
    tokens = {i: f"<|pad_{i}|>" for i in range(N_IDS)}
    tokens |= {0: "<unk>", 1: "<s>", 2: "</s>", 3: SPACE}
    tokens |= {
        101: "<|audio_start|>",
        102: "<|audio_end|>",
        103: "<|audio_prompt_start|>",
        104: "<|audio_prompt_end|>",
    }
    for i, letter in enumerate(string.ascii_lowercase):
        tokens[FIRST_LETTER_ID + i] = letter
        tokens[FIRST_CAPITAL_ID + i] = letter.upper()
    for i, mark in enumerate(PUNCTUATION):
        tokens[FIRST_LETTER_ID + 26 + i] = mark
    return {tokens[i]: i for i in range(N_IDS)}


def encode(text: str) -> list[int]:
    """Return the ids the training uses: lower case, one leading space.

    Raises:
        ValueError: a character has no token.
    """
    ids = vocabulary()
    marked = SPACE + text.lower().replace(" ", SPACE)
    if strange := sorted(set(marked) - set(ids)):
        raise ValueError(f"no token for {strange} in {text!r}")
    return [ids[c] for c in marked]


def write_tokenizer(folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` as `LlamaTokenizerFast` reads them."""
    special = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    ids = vocabulary()
    by_id = {i: token for token, i in ids.items()}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": by_id[i], **special} for i in (0, 1, 2, 101, 102, 103, 104)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": ids,
            "merges": [],
        },
    }
    config = {
        "tokenizer_class": "LlamaTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": False,
        "add_eos_token": False,
        "legacy": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    (folder / "tokenizer.json").write_text(
        json.dumps(tokenizer, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
