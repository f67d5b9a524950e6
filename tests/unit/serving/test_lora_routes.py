"""From where clients may load adapters."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.serving.scripted import Scripted
from voxnative.errors import ParameterError
from voxnative.serving.http_errors import RequestFailed
from voxnative.serving.lora_routes import allowed_directory, refuse_where_several
from voxnative.serving.schema import SpeechBody


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "allowed" / "anna").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "alias").symlink_to(tmp_path / "allowed")
    (tmp_path / "allowed" / "loop").symlink_to(tmp_path / "allowed" / "loop")
    return tmp_path


@pytest.mark.parametrize("path", ["allowed/anna", "allowed/../allowed/anna", "alias/anna"])
def test_a_directory_inside_an_allowed_folder(path: str, folder: Path) -> None:
    folders = (str(folder / "elsewhere"), str(folder / "allowed"))
    assert allowed_directory(str(folder / path), folders) == folder / "allowed" / "anna"


@pytest.mark.parametrize(
    "path", ["secret", "allowed/../secret", "allowed/link", "allowed2", "allowed\0"]
)
def test_everything_else_is_refused(path: str, folder: Path) -> None:
    with pytest.raises(ParameterError, match="field 'lora_path'"):
        allowed_directory(str(folder / path), (str(folder / "allowed"),))


def test_nothing_is_allowed_by_default(folder: Path) -> None:
    with pytest.raises(ParameterError, match="allowed_lora_dirs"):
        allowed_directory(str(folder / "allowed" / "anna"), Scripted().settings.allowed_lora_dirs)


def test_without_adapters_a_body_is_told_so() -> None:
    server = Scripted().server
    call = asyncio.run(server.call(SpeechBody(input="hi", model="tiny")))
    assert call.arguments == {}
    with pytest.raises(RequestFailed, match=r"valid: tiny$"):
        asyncio.run(server.call(SpeechBody(input="hi", model="anna")))


def test_several_api_servers_leave_the_adapters_as_they_are() -> None:
    server = Scripted().server
    refuse_where_several(server)
    with pytest.raises(RequestFailed, match=r"one of 2 API servers .*--lora-modules") as caught:
        refuse_where_several(replace(server, n_api_servers=2))
    assert caught.value.status == 400
