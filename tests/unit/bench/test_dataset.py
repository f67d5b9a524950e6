"""Data sets in seed-tts layout, the shipped one among them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import soundfile

import voxnative
from tests.unit.bench.test_matrix import FIELD_ROW, read_one
from voxnative.bench.dataset import make_tasks, read_dataset
from voxnative.bench.errors import BenchError
from voxnative.bench.matrix import Row
from voxnative.bench.paths import find_dataset, find_path, shown_model

SHIPPED = Path(voxnative.__file__).parent / "bench/data/seed_tts_small"
MAX_SHIPPED_BYTES = 1_500_000


@pytest.fixture
def row(tmp_path: Path) -> Row:
    return read_one(tmp_path, {**FIELD_ROW, "seed": 100, "extra_body": {"voice": "alloy"}})


def meta(tmp_path: Path, text: str) -> Path:
    (tmp_path / "en").mkdir(exist_ok=True)
    (tmp_path / "en/meta.lst").write_text(text)
    return tmp_path


def test_the_shipped_one() -> None:
    items = read_dataset(SHIPPED, "seed-tts", "en")
    assert len({item.id for item in items}) == len(items) == 24
    for item in items:
        assert item.reference is not None
        assert item.reference_text
        sound = soundfile.info(item.reference)
        assert (sound.samplerate, sound.channels) == (16_000, 1)
        assert 2 < sound.duration < 10
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*.*")) < MAX_SHIPPED_BYTES
    used = {item.reference for item in items}
    assert used == set((SHIPPED / "en/prompt-wavs").iterdir())


def test_the_text_layout_takes_no_recordings(tmp_path: Path) -> None:
    root = meta(tmp_path, "# comment\n\na|words|missing.wav|Say this.\n")
    (item,) = read_dataset(root, "seed-tts-text", "en")
    assert (item.id, item.text, item.reference) == ("a", "Say this.", None)


def test_the_design_layout_has_a_description(tmp_path: Path) -> None:
    root = meta(tmp_path, "a|||Say this.|a calm voice\n")
    (item,) = read_dataset(root, "seed-tts-design", "en")
    assert (item.text, item.description) == ("Say this.", "a calm voice")


@pytest.mark.parametrize(
    ("text", "layout", "message"),
    [
        ("a|b|c\n", "seed-tts", "line 1: valid: 4 fields"),
        ("a|b|c| \n", "seed-tts-text", "line 1: valid: 4 fields"),
        ("a|b|c|d\n", "seed-tts-design", "valid: 5 fields"),
        ("#\na|b|gone.wav|d\n", "seed-tts", "line 2: no recording"),
        ("\n", "seed-tts", "holds no lines"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, layout: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        read_dataset(meta(tmp_path, text), layout, "en")
    with pytest.raises(BenchError, match="No such file"):
        read_dataset(tmp_path, layout, "zh")


def test_tasks_are_the_same_for_every_target(row: Row) -> None:
    items = read_dataset(SHIPPED, "seed-tts", "en")
    tasks = make_tasks(row, items, 30)
    assert tasks == make_tasks(row, items, 30)
    assert [task.seed for task in tasks] == list(range(100, 130))
    assert sorted(task.item_id for task in tasks[:24]) == sorted(item.id for item in items)
    assert tasks[24].item_id == tasks[0].item_id
    assert tasks[0].extra_body == {"voice": "alloy"}
    in_order = make_tasks(replace(row, shuffle=False), items, 2, first=1)
    assert [task.item_id for task in in_order] == [items[1].id, items[2].id]


def test_paths_are_found_from_the_matrix_up(tmp_path: Path) -> None:
    folder = tmp_path / "a/b"
    folder.mkdir(parents=True)
    (tmp_path / "data.txt").touch()
    assert find_path("data.txt", folder / "m.json") == tmp_path / "data.txt"
    assert find_path("no.txt", folder / "m.json") is None
    shipped = "voxnative/bench/data/seed_tts_small"
    assert find_dataset(shipped, "en", folder / "m.json") == SHIPPED.resolve()
    with pytest.raises(BenchError, match="--dataset DIR uses another"):
        find_dataset("no/such/folder", "en", folder / "m.json")


def test_reports_show_no_folders_of_the_machine(tmp_path: Path) -> None:
    assert shown_model(str(tmp_path)) == tmp_path.name
    assert shown_model("openbmb/VoxCPM2") == "openbmb/VoxCPM2"
