"""Shared fixtures: the shipped checkpoint, its config and tokenizer, short recordings.

Every test carries the marker of its folder (unit, parity, e2e, perf), and the tiers run in that
order, so that a broken network fails before an engine starts (two_workers.py has another order).
Tests marked hardware_test(res="cuda") are deselected where there are fewer CUDA devices than they
ask for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import voxnative

if TYPE_CHECKING:
    from voxnative.config import VoxConfig
    from voxnative.tokenizer import TextTokenizer

pytest_plugins = ["tests.engines", "tests.helpers.runtime", "tests.two_workers"]

REPO = Path(__file__).resolve().parent.parent
TIERS = ("unit", "parity", "e2e", "perf")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    for_cuda = [item for item in items if cards_of(item)]
    if for_cuda:
        import torch

        n_cards = torch.cuda.device_count()
        elsewhere = [item for item in for_cuda if cards_of(item) > n_cards]
        items[:] = [item for item in items if item not in elsewhere]
        config.hook.pytest_deselected(items=elsewhere)  # counted in the last line of a run
    tier_of = {}
    for item in items:
        folder = item.path.relative_to(tests).parts[0]
        tier_of[item] = TIERS.index(folder) if folder in TIERS else len(TIERS)
        if folder in TIERS:
            item.add_marker(folder)
    items.sort(key=lambda item: (is_last(item), tier_of[item]))


def is_last(item: pytest.Item) -> bool:
    """Tests that end an engine which all share run when nobody needs it any more."""
    return item.get_closest_marker("ends_shared_engine") is not None


def cards_of(item: pytest.Item) -> int:
    """CUDA devices that a test asks for; 0 where it runs anywhere."""
    marker = item.get_closest_marker("hardware_test")
    is_for_cuda = marker is not None and marker.kwargs["res"] == "cuda"
    return marker.kwargs["num_cards"] if marker is not None and is_for_cuda else 0


@pytest.fixture(scope="session")
def repo() -> Path:
    return REPO


@pytest.fixture(scope="session")
def tiny_dir() -> Path:
    """The trained checkpoint that ships with the package."""
    return Path(voxnative.__file__).parent / "checkpoints" / "tiny"


@pytest.fixture(scope="session")
def tiny_config(tiny_dir: Path) -> VoxConfig:
    from voxnative.config import VoxConfig

    return VoxConfig.from_dir(tiny_dir)


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_dir: Path) -> TextTokenizer:
    from voxnative.tokenizer import TextTokenizer

    return TextTokenizer.from_dir(tiny_dir)


@pytest.fixture(scope="session")
def voice_16k() -> np.ndarray:
    """1.3 s of a voice-like signal at 16 kHz: no whole number of patches, never silent."""
    t = np.arange(int(1.3 * 16_000)) / 16_000
    pitch = 120 + 20 * np.sin(2 * np.pi * 3 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / 16_000
    harmonics = sum(np.sin(k * phase) / k for k in range(1, 9))
    return (0.1 * harmonics).astype(np.float32)


@pytest.fixture(scope="session")
def chinese_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama tokenizer whose vocabulary holds Chinese words of two and three characters."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    characters = [*"▁abcdehlorw,.!？，。()", *"你好世界中国人们"]
    merges = [("你", "好"), ("▁", "你好"), ("世", "界"), ("中", "国"), ("中国", "人")]
    merges += [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello")]
    tokens = ["<unk>", "<s>", "</s>", *characters, *("".join(pair) for pair in merges)]
    # The special ids of the model's vocabulary, 101 to 104, lie behind a gap as in a real one.
    tokens += [f"<|unused_{i}|>" for i in range(len(tokens), 101)]
    tokens += ["<|audio_start|>", "<|audio_end|>", "<|audio_prompt_start|>", "<|audio_prompt_end|>"]
    model = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)}, merges=merges, unk_token="<unk>"
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", *tokens[101:105]])
    folder = tmp_path_factory.mktemp("chinese_tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",'
        ' "unk_token": "<unk>", "add_bos_token": true, "legacy": true}'
    )
    return folder
