"""examples/tiny_checkpoint at toy size: steps run and resume, losses fall, the export speaks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean

import pytest
import soundfile
import torch
from safetensors.torch import load_file

from tests.reference import reference_generate
from voxnative.checkpoint_shapes import verify_checkpoint
from voxnative.config import VoxConfig
from voxnative.tokenizer import TextTokenizer

RECIPE = Path(__file__).parents[2] / "examples" / "tiny_checkpoint"
CONFIG = RECIPE / "ci.toml"

pytestmark = pytest.mark.timeout(1200)


def recipe_command(work: Path, *arguments: str) -> list[str | Path]:
    wordnet = f'corpus.wordnet_dir="{work / "wordnet"}"'
    command = [sys.executable, RECIPE / "run.py", "--config", CONFIG, "--work", work]
    return [*command, "--set", wordnet, *arguments]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}


def run_steps(work: Path, *arguments: str) -> dict[str, dict]:
    """Run steps of the recipe; their summaries by name."""
    command = recipe_command(work, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    summaries: dict[str, dict] = {}
    rest = done.stdout
    while (start := rest.find("{\n")) >= 0:
        summary, end = json.JSONDecoder().raw_decode(rest[start:])
        summaries |= summary
        rest = rest[start + end :]
    return summaries


def run_until(work: Path, *steps: str, log: Path, n_lines: int) -> str:
    """Run steps, end them by SIGTERM once the log has `n_lines`, and return what they said."""
    command = recipe_command(work, *steps)
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()
    )
    try:
        while process.poll() is None and not (
            log.exists() and len(log.read_text().splitlines()) >= n_lines
        ):
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        return process.communicate(timeout=120)[1]
    finally:
        process.kill()


def write_small_wordnet(folder: Path) -> None:
    """Glosses in WordNet's file format, enough for the toy corpus."""
    folder.mkdir()
    nouns = [
        "dog",
        "river",
        "garden",
        "letter",
        "window",
        "teacher",
        "village",
        "morning",
        "book",
        "horse",
        "tree",
        "boat",
    ]
    verbs = ["saw", "liked", "found", "described", "remembered", "painted", "left", "heard", "took"]
    lines = [
        f'0000 | a kind of {noun}; "the old man {verb} the {noun}"'
        for noun in nouns
        for verb in verbs
    ]
    for name in ("data.noun", "data.verb", "data.adj", "data.adv"):
        (folder / name).write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe's folder after all steps; both trainings were interrupted on the way."""
    folder = tmp_path_factory.mktemp("recipe")
    write_small_wordnet(folder / "wordnet")
    run_steps(folder, "corpus", "teach")
    for steps in (["train_vae"], ["train_vae", "train_tts"]):
        log = folder / steps[-1].removeprefix("train_") / "log.jsonl"
        said = run_until(folder, *steps, log=log, n_lines=3)
        assert "the same command goes on" in said
        assert not (log.parent / "done").exists()
        (folder / f"{steps[-1]}.interrupted").write_text(log.read_text())
    assert (folder / "vae" / "done").exists()
    assert run_steps(folder, "train_tts", "export")["train_tts"]["done"] is True
    return folder


def journal(path: Path, stage: str) -> dict[int, dict]:
    """Lines of a training log by step."""
    lines = map(json.loads, path.read_text().splitlines())
    return {line["step"]: line for line in lines if line["stage"] == stage}


def losses(work: Path, part: str, stage: str, name: str) -> list[float]:
    return [line[name] for line in journal(work / part / "log.jsonl", stage).values()]


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


@pytest.mark.parametrize(
    ("step", "stage", "key"), [("train_vae", "autoencoder", "vae"), ("train_tts", "tts", "tts")]
)
def test_an_interrupted_training_goes_on(work: Path, step: str, stage: str, key: str) -> None:
    before = journal(work / f"{step}.interrupted", stage)
    after = journal(work / key / "log.jsonl", stage)
    n_steps = max(after)
    assert 3 <= max(before) < n_steps
    assert sorted(after) == list(range(1, n_steps + 1))  # no step twice, none left out
    assert after[n_steps]["spent_s"] > before[max(before)]["spent_s"]


def test_a_finished_step_does_nothing_again(work: Path) -> None:
    before = (work / "tts" / "average.pt").stat().st_mtime_ns
    summaries = run_steps(work, "teach", "train_tts", "probe")
    assert summaries["train_tts"] == {"done": True}
    assert summaries["teach"]["train"] > 0
    assert summaries["probe"]["weights"] == "decoder.pt"
    assert summaries["probe"]["vae_wer"] >= 0  # of noise; whisper may hear anything
    assert summaries["probe"]["teacher_wer"] < 25  # its own clips, whole: no first words cut off
    assert (work / "tts" / "average.pt").stat().st_mtime_ns == before


def test_the_export_has_the_published_form(work: Path) -> None:
    config = VoxConfig.from_dir(work / "checkpoint")
    verify_checkpoint(work / "checkpoint", config)
    assert config.text_frontend == "english"
    tokenizer = TextTokenizer.from_dir(work / "checkpoint")
    assert tokenizer.encode("A b.") == [3, 60, 3, 5, 31]


def test_the_export_speaks(work: Path) -> None:
    speech = reference_generate(work / "checkpoint", "hello there.", n_steps=4, timesteps=4, cfg=3)
    assert speech.latents.shape == (4, 4, 32)
    assert speech.audio.shape == (4 * 2560,)  # 160 ms a patch at 16 kHz
    assert 0 < speech.audio.abs().max() <= 1
    other = reference_generate(work / "checkpoint", "go away now.", n_steps=4, timesteps=4, cfg=3)
    assert not torch.equal(speech.latents, other.latents)  # the text reaches the audio


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, value in after.items() if not torch.equal(value, before[name])]


def test_a_training_begins_with_a_checkpoint(work: Path, tmp_path: Path) -> None:
    """Its first average is the checkpoint, the encoder stays, and both trainings go on."""
    for part in ("corpus", "speech"):
        (tmp_path / part).symlink_to(work / part)
    begin = ["warm_start", "--out", str(work / "checkpoint")]
    assert run_steps(tmp_path, *begin)["warm_start"] == {"started": True}
    weights = load_file(work / "checkpoint" / "model.safetensors")
    average = torch.load(tmp_path / "tts" / "average.pt")
    assert all(torch.equal(value, weights[name].float()) for name, value in average.items())
    before = torch.load(tmp_path / "vae" / "frozen.pt")
    few = ["--set", "tts.max_steps=2", "--set", "vae.max_steps=2"]
    more = run_steps(tmp_path, "train_vae", "train_tts", *few)
    assert more["train_vae"] == {"frozen": True, "done": True}
    assert more["train_tts"]["steps"] == 2
    assert not moved(before, torch.load(tmp_path / "vae" / "frozen.pt"))
    decoder = moved(before, torch.load(tmp_path / "vae" / "decoder.pt"))
    assert decoder
    assert all(name.startswith("decoder.") for name in decoder)
    assert len(moved(average, torch.load(tmp_path / "tts" / "average.pt"))) > len(average) // 2
    assert run_steps(tmp_path, *begin)["warm_start"] == {"started": False}


@pytest.mark.full_model
def test_the_export_speaks_through_the_engine(work: Path, tmp_path: Path) -> None:
    wav = tmp_path / "hello.wav"
    command = [sys.executable, "-m", "voxnative.cli", "say", "Hello there.", "-o", str(wav)]
    command += ["--model", str(work / "checkpoint"), "--max-seconds", "2", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    samples, rate_hz = soundfile.read(wav)
    assert rate_hz == 16000
    assert len(samples) >= 4 * 2560  # the stop head is ignored during the first three patches


def test_the_export_ignores_case(work: Path) -> None:
    table = load_file(work / "checkpoint" / "model.safetensors")["base_lm.embed_tokens.weight"]
    assert torch.equal(table[4:30], table[60:86])
    assert not torch.equal(table[4:30], table[5:31])


def test_an_unknown_key_is_refused_by_name(tmp_path: Path) -> None:
    command = [sys.executable, RECIPE / "run.py", "corpus", "--config", CONFIG, "--work", tmp_path]
    done = subprocess.run([*command, "--set", "vae.batchsize=3"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "unknown key 'batchsize'" in done.stderr
    assert "valid: sample_rate_hz" in done.stderr
