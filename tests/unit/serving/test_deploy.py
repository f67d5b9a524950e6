"""Deploy files and settings: unknown keys are errors; the shipped ones are good."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from voxnative.errors import CheckpointError
from voxnative.serving.deploy import as_flags, read_deploy
from voxnative.serving.launcher import parse
from voxnative.serving.settings import ServerSettings, SettingsError

KEYS = {"dtype", "max_num_seqs", "enforce_eager", "port"}


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`parse` sets variables; they are put back."""
    for name in ("VLLM_PLUGINS", "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
        monkeypatch.delenv(name)


def written(folder: Path, text: str) -> Path:
    path = folder / "deploy.yaml"
    path.write_text(text)
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    text = "max-num-seqs: 4\nenforce_eager: true\nvoxnative:\n  max_queue: 3\n"
    deploy = read_deploy(written(tmp_path, text), KEYS)
    assert deploy.engine == {"max_num_seqs": 4, "enforce_eager": True}
    assert deploy.server == {"max_queue": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_seqs: 4", "unknown key 'max_seqs' in .*valid: 'voxnative' and vLLM's own: dtype"),
        ("voxnative: {queue: 3}", "unknown key 'queue' in 'voxnative:'; valid: max_concurrency"),
        ("voxnative: 3", "no section of keys"),
        ("voxnative: {max_queue: -1}", "max_queue: -1 is not valid; valid: a whole number from 0"),
        ("- a", "holds no keys"),
        ("", "holds no keys"),
        ("a: [", "is no YAML file"),
    ],
)
def test_a_bad_file_says_what_is_valid(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_deploy(written(tmp_path, text), KEYS)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        read_deploy(tmp_path / "none.yaml", KEYS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_concurrency": 0}, "max_concurrency: 0"),
        ({"max_concurrency": True}, "max_concurrency: True"),
        ({"max_queue": 1.5}, "max_queue: 1.5"),
        ({"request_timeout_s": 0}, "request_timeout_s: 0"),
        ({"reader_timeout_s": "1"}, "reader_timeout_s: '1'"),
        ({"max_upload_mb": None}, "max_upload_mb: None"),
        ({"default_sample_rate_hz": 100}, "default_sample_rate_hz: 100.*8000 to 48000"),
        ({"voices_dir": 3}, "voices_dir: 3"),
        ({"allowed_media_dirs": "one"}, "allowed_media_dirs: 'one'.*a list of strings"),
        ({"allowed_media_hosts": [3]}, "allowed_media_hosts"),
    ],
)
def test_bad_settings_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ServerSettings.from_mapping(given)


def test_flags_of_every_kind_of_value() -> None:
    engine = {
        "max_num_seqs": 4,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "served_model_name": ["a", "b"],
        "compilation_config": {"level": 0},
        "dtype": None,
    }
    assert as_flags(engine) == [
        "--max-num-seqs=4",
        "--enforce-eager",
        "--no-enable-prefix-caching",
        "--served-model-name",
        "a",
        "b",
        '--compilation-config={"level": 0}',
    ]


@pytest.mark.usefixtures("clean_environment")
class TestLauncher:
    """`parse` alone, with vLLM's real parser."""

    def test_nothing_given_serves_the_shipped_checkpoint(self, tiny_dir: Path) -> None:
        args = parse([])
        assert args.model == str(tiny_dir)
        assert args.served_model_name == ["tiny"]
        assert args.dtype == "float32"
        assert args.kv_cache_memory_bytes > 0
        assert args.additional_config == {"voxnative": {}}

    def test_flags_go_before_the_file_and_the_file_before_the_rest(
        self, tmp_path: Path, tiny_dir: Path
    ) -> None:
        text = "max_num_seqs: 3\nmax_model_len: 256\nvoxnative:\n  max_queue: 5\n  max_upload_mb: 2"
        path = written(tmp_path, text)
        flags = ["--max-num-seqs", "2", "--additional-config", '{"voxnative": {"max_queue": 6}}']
        args = parse([str(tiny_dir), "--deploy", str(path), *flags])
        assert (args.max_num_seqs, args.max_model_len) == (2, 256)
        assert args.additional_config == {"voxnative": {"max_queue": 6, "max_upload_mb": 2}}

    def test_the_routes_are_allowed_beside_other_plugins(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import os

        monkeypatch.setenv("VLLM_PLUGINS", "other")
        parse([])
        assert os.environ["VLLM_PLUGINS"] == "other,voxnative"

    @pytest.mark.parametrize("name", ["cpu", "h200", "h200-x2", "h200-x2-tp", "h200-x4", "l4"])
    def test_the_shipped_files(self, repo: Path, name: str) -> None:
        path = repo / "deploy" / f"{name}.yaml"
        args: argparse.Namespace = parse(["--deploy", str(path)])
        settings = ServerSettings.from_mapping(args.additional_config["voxnative"])
        assert settings.max_queue == 8 * args.max_num_seqs * args.data_parallel_size
        header = re.split(r"\n(?!#)", path.read_text())[0]
        assert "easured" in header

    def test_one_front_end_for_all_replicas(self) -> None:
        assert parse(["--data-parallel-size", "2"]).api_server_count == 1
        asked = ["--data-parallel-size", "2", "--api-server-count", "2"]
        assert parse(asked).api_server_count == 2
        assert parse([]).api_server_count is None

    def test_kv_memory_is_of_each_rank(self) -> None:
        one = parse([]).kv_cache_memory_bytes
        assert parse(["--tensor-parallel-size", "2"]).kv_cache_memory_bytes == one // 2

    def test_what_cannot_be_served(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="no checkpoint directory"):
            parse([str(tmp_path / "none")])
        with pytest.raises(SettingsError, match="MODEL as the first argument"):
            parse(["--model", "x"])
        with pytest.raises(SettingsError, match="unknown key"):
            parse(["--additional-config", '{"voxnative": {"colour": 1}}'])
