"""Quality: recordings of people score as what they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

import voxnative
from voxnative.bench.dataset import Item, read_dataset
from voxnative.bench.errors import BenchError
from voxnative.bench.quality import QualityJudge
from voxnative.bench.recognise import edit_distance
from voxnative.bench.record import RequestRecord, SpeechTask
from voxnative.bench.similarity import SpeakerEncoder

SHIPPED = Path(voxnative.__file__).parent / "bench/data/seed_tts_small"


@pytest.fixture(scope="module")
def references() -> dict[str, Item]:
    items = read_dataset(SHIPPED, "seed-tts", "en")
    return {item.reference.stem: item for item in items if item.reference is not None}


def spoken(item: Item, reference: Item | None = None) -> RequestRecord:
    """A recording of the data set, as if a server had answered with it."""
    samples, rate_hz = soundfile.read(str(item.reference), dtype="float32")
    voice = None if reference is None else str(reference.reference)
    task = SpeechTask(0, item.id, item.reference_text or "", 0, voice)
    return RequestRecord(task, 0.0, [0.1], [samples], 1.0, rate_hz)


def test_a_recording_of_a_person(references: dict[str, Item]) -> None:
    judge = QualityJudge()
    record = spoken(references["librivox-0930"], references["librivox-0890"])
    found = judge.score([record], "en", lambda records: records)
    assert found["n_scored"] == 1
    assert found["wer_percent"]["value"] <= 15
    assert found["speaker_similarity"]["value"] > 0.7
    assert 2.5 < found["dnsmos_ovrl"]["value"] < 4.5
    assert judge.score([], "en", lambda records: records) == {"n_scored": 0, "misheard": []}
    with pytest.raises(BenchError, match="zh is not valid"):
        judge.score([record], "zh", lambda records: records)


def test_a_speaker_is_nearer_to_itself_than_to_others(references: dict[str, Item]) -> None:
    encoder = SpeakerEncoder()
    record = spoken(references["librivox-0930"])

    def likeness(other: str) -> float:
        path = str(references[other].reference)
        return encoder.similarity(record.samples, record.rate_hz, path)

    assert likeness("librivox-0930") == pytest.approx(1.0, abs=1e-5)
    others = [likeness(name) for name in ("flite-slt", "flite-rms", "flite-awb")]
    assert likeness("librivox-0890") > max(others)
    silence, reference = np.zeros(16_000, np.float32), references["flite-slt"].reference
    assert encoder.similarity(silence, 16_000, str(reference)) == 0


@pytest.mark.parametrize(
    ("said", "heard", "n_edits"),
    [
        ("a b c", "a b c", 0),
        ("a b c", "a c", 1),
        ("a b", "b a", 2),
        ("", "a", 1),
        ("a x c", "a b c d", 2),
    ],
)
def test_word_edits(said: str, heard: str, n_edits: int) -> None:
    assert edit_distance(said.split(), heard.split()) == n_edits
