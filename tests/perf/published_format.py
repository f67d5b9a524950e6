"""A directory in the published form with a trained BPE vocabulary and no weights.

For measurements of what happens before the engine: the published model's texts go through such a
vocabulary and through no English front end.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, trainers

from tests.perf.full_size import published_config

REPOSITORY = Path(__file__).parents[2]
VOCABULARY = 8000


def write_published_format(directory: Path) -> Path:
    """Write `config.json` and a Llama tokenizer whose words are those of this repository."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(published_config()))
    specials = ["<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=specials, show_progress=False, max_token_length=16
    )
    lines = (
        word
        for path in sorted(REPOSITORY.glob("**/*.md"))
        if ".venv" not in path.parts
        for line in path.read_text().splitlines()
        for word in line.split()
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    described = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(
        json.dumps(described | {"unk_token": "<unk>", "add_bos_token": True, "legacy": True})
    )
    return directory
