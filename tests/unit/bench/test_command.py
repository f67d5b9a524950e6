"""The command line: what is wrong is found before an engine starts, and says what is valid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.bench.test_matrix import FIELD_ROW, FIELD_TEST
from voxnative.bench.command import EXIT_BAD_INPUT, _parser, _rows, main
from voxnative.bench.engine_target import offline_settings
from voxnative.bench.errors import BenchError
from voxnative.bench.machine import machine_facts
from voxnative.bench.matrix import ServerParams
from voxnative.bench.server_process import model_of, serve_command

SMALL = "voxnative/bench/data/seed_tts_small"


def matrix(tmp_path: Path, **test: object) -> Path:
    path = tmp_path / "m.json"
    row = {**FIELD_ROW, "dataset_path": SMALL}
    path.write_text(json.dumps([{**FIELD_TEST, "benchmark_params": [row], **test}]))
    return path


@pytest.mark.parametrize(
    ("arguments", "test", "message"),
    [
        ([], {"hardware": "H100"}, "no row is left for this machine"),
        (["--row", "nothing"], {}, "no such row"),
        ([], {}, "stage_overrides belong to another server"),
        ([], {"server_params": {"deploy": "no.yaml"}}, "deploy: no file no.yaml"),
        (["--dataset", "/no/where"], {}, "valid: a directory in seed-tts layout"),
    ],
)
def test_bad_input(
    tmp_path: Path,
    capfd: pytest.CaptureFixture,
    arguments: list[str],
    test: dict[str, object],
    message: str,
) -> None:
    code = main(["serve", "--matrix", str(matrix(tmp_path, **test)), *arguments])
    assert code == EXIT_BAD_INPUT
    captured = capfd.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_report_to_append_to_must_be_there(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    arguments = ["serve", "--matrix", str(matrix(tmp_path)), "--base-url", "http://127.0.0.1:9"]
    out = ["--out", str(tmp_path / "out"), "--append", "--no-quality"]
    assert main([*arguments, *out]) == EXIT_BAD_INPUT
    assert "--append: no report" in capfd.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["sing"], ["serve"], ["serve", "--matrix"]])
def test_usage(arguments: list[str], capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == EXIT_BAD_INPUT
    assert capfd.readouterr().err.count("\n") == 1


def test_another_checkpoint_for_all_rows(tmp_path: Path) -> None:
    path = matrix(tmp_path, server_params={"model": "openbmb/VoxCPM2", "deploy": "deploy/cpu.yaml"})
    args = _parser().parse_args(["serve", "--matrix", str(path), "--model", "/weights"])
    assert {(row.server.model, row.server.deploy) for row in _rows(args)} == {
        ("/weights", "deploy/cpu.yaml")
    }


def test_the_command_of_a_server(repo: Path) -> None:
    here = repo / "tests/dfx/perf/tests/test_voxcpm2.json"
    params = ServerParams("voxnative/checkpoints/tiny", "deploy/cpu.yaml", ("--seed", "1"), ())
    command = serve_command(params, here)
    assert command[1:4] == ["-m", "voxnative.cli", "serve"]
    assert command[4:] == [
        str(repo / "voxnative/checkpoints/tiny"),
        "--deploy",
        str(repo / "deploy/cpu.yaml"),
        "--seed",
        "1",
    ]
    assert model_of(ServerParams("openbmb/VoxCPM2", None, (), ()), here) == "openbmb/VoxCPM2"
    assert Path(model_of(ServerParams(None, None, (), ()), here)).name == "tiny"


def test_offline_takes_a_deploy_file_and_no_flags(repo: Path) -> None:
    here = repo / "tests/dfx/perf/tests/test_voxcpm2.json"
    settings = offline_settings(ServerParams(None, "deploy/cpu.yaml", (), ()), here)
    assert settings["max_num_seqs"] == 8
    assert "voxnative" not in settings
    with pytest.raises(BenchError, match="--seed, 1: not valid offline"):
        offline_settings(ServerParams(None, None, ("--seed", "1"), ()), here)


def test_the_machine_is_described(repo: Path) -> None:
    facts = machine_facts()
    assert facts["cores"] >= 1
    assert facts["packages"]["torch"]
    assert facts["commit"] is None or len(facts["commit"].removesuffix("-dirty")) == 12
