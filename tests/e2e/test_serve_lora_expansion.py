"""Adapters behind the server: loaded, listed, spoken with, unloaded; and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.adapters import write_adapter
from tests.checkpoints import TRAINED_TINY, write_checkpoint
from tests.helpers.runtime import (
    SPEECH,
    Reply,
    Server,
    assert_audio_reply,
    assert_refused,
    send_audio_speech_request,
    serve,
    voxnative_command,
)

pytestmark = [
    pytest.mark.tts,
    pytest.mark.full_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

MODEL_HZ = 16_000
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
REQUEST = {"input": "hello there.", "seed": 1, "response_format": "pcm", "max_new_tokens": 6}
PCM_TOLERANCE = 2 / 32768


def post(server: Server, route: str, **body: Any) -> Reply:
    answer = httpx.post(f"{server.address}{route}", json=body, timeout=60)
    return Reply(answer.status_code, answer.headers, [answer.content])


def folder_of(server: Server) -> Path:
    """The folder from which this server loads adapters."""
    return server.log.parent / "loras"


@pytest.fixture(scope="module")
def lora_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The shipped checkpoint; adapters may be loaded from the folder "loras"."""
    folder = tmp_path_factory.mktemp("lora_server")
    room = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 2, "max_lora_rank": 8}
    section = {"allowed_lora_dirs": [str(folder / "loras")]}
    with serve(voxnative_command(folder, section, max_num_seqs=8, **room), folder) as server:
        yield server


@pytest.fixture(scope="module")
def adapter(lora_server: Server) -> Path:
    """Changes all parts that upstream adapts."""
    return write_adapter(
        folder_of(lora_server) / "anna",
        TRAINED_TINY,
        seed=3,
        r=4,
        enable_lm=True,
        enable_dit=True,
        enable_proj=True,
    )


@pytest.fixture
def anna(lora_server: Server, adapter: Path) -> Iterator[str]:
    """The adapter's name, while it is loaded."""
    answer = post(lora_server, LOAD, lora_name="anna", lora_path=str(adapter))
    assert answer.status == 200, answer.body
    yield "anna"
    answer = httpx.delete(f"{lora_server.address}{LOAD}", params={"lora_name": "anna"})
    assert answer.status_code == 200, answer.text


def spoken(server: Server, **fields: Any) -> np.ndarray:
    request = REQUEST | fields
    return assert_audio_reply(send_audio_speech_request(server, request), request, MODEL_HZ)


def models(server: Server) -> dict[str, dict[str, Any]]:
    return {card["id"]: card for card in httpx.get(f"{server.address}/v1/models").json()["data"]}


def test_speech_by_either_field(lora_server: Server, anna: str, adapter: Path) -> None:
    card = models(lora_server)[anna]
    assert card["parent"] == "tiny"
    assert card["root"] == str(adapter)
    plain = spoken(lora_server)
    by_lora = spoken(lora_server, lora=anna)
    by_model = spoken(lora_server, model=anna)
    both = spoken(lora_server, model=anna, lora=anna)
    for other in (by_model, both):
        assert np.abs(by_lora - other).max() <= PCM_TOLERANCE
    assert np.abs(by_lora - plain).max() > 0.02
    assert np.abs(spoken(lora_server, model="tiny") - plain).max() <= PCM_TOLERANCE


def test_a_batch_mixes_adapters(lora_server: Server, anna: str) -> None:
    fields = {key: value for key, value in REQUEST.items() if key != "input"}
    items = [{"input": REQUEST["input"], "lora": anna}, {"input": REQUEST["input"]}]
    answer = post(lora_server, f"{SPEECH}/batch", items=items, **fields)
    assert answer.status == 200, answer.body
    for result, lora in zip(json.loads(answer.body)["results"], (anna, None), strict=True):
        pcm = np.frombuffer(base64.b64decode(result["audio_data"]), np.int16) / 32768
        alone = spoken(lora_server, **({"lora": lora} if lora else {}))
        assert np.abs(pcm - alone).max() <= PCM_TOLERANCE


def test_after_unloading_the_name_is_unknown(lora_server: Server, adapter: Path) -> None:
    body = {"lora_name": "leaving", "lora_path": str(adapter)}
    assert post(lora_server, LOAD, **body).status == 200
    assert_refused(post(lora_server, LOAD, **body), 400, "lora_name")  # in use
    assert post(lora_server, UNLOAD, lora_name="leaving").status == 200
    assert "leaving" not in models(lora_server)
    assert_refused(post(lora_server, UNLOAD, lora_name="leaving"), 404, "lora_name")
    gone = send_audio_speech_request(lora_server, REQUEST | {"model": "leaving"})
    assert_refused(gone, 404, "model")
    gone = send_audio_speech_request(lora_server, REQUEST | {"lora": "leaving"})
    assert_refused(gone, 400, "lora")
    assert post(lora_server, LOAD, **body).status == 200
    assert post(lora_server, UNLOAD, lora_name="leaving").status == 200


def test_an_unknown_adapter_is_told_the_valid_ones(lora_server: Server, anna: str) -> None:
    reply = send_audio_speech_request(lora_server, REQUEST | {"lora": "bob"})
    assert_refused(reply, 400, "lora")
    assert reply.error["message"].endswith("valid: anna")
    reply = send_audio_speech_request(lora_server, REQUEST | {"model": anna, "lora": "bob"})
    assert_refused(reply, 400, "lora")


def test_an_adapter_that_does_not_fit(lora_server: Server) -> None:
    other = write_checkpoint(lora_server.log.parent / "other")
    directory = write_adapter(folder_of(lora_server) / "misfit", other, seed=1, enable_lm=True)
    reply = post(lora_server, LOAD, lora_name="misfit", lora_path=str(directory))
    assert_refused(reply, 400, "lora_path")
    # The other checkpoint has fewer layers too, and those are named first.
    assert (
        "missing tensor base_lm.layers.5.self_attn.o_proj.lora_A [8, 256]"
        in (reply.error["message"])
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"lora_name": "x", "lora_path": "/etc"}, "lora_path"),
        ({"lora_name": "x", "lora_path": "loras/../../x"}, "lora_path"),
        ({"lora_name": "x", "lora_path": "a\0b"}, "lora_path"),
        ({"lora_name": "x"}, "lora_path"),
        ({"lora_name": "", "lora_path": "/etc"}, "lora_name"),
        ({"lora_name": "tiny", "lora_path": "/etc"}, "lora_name"),
        ({"lora_name": "tts-1", "lora_path": "/etc"}, "lora_name"),
        ({"lora_name": "x", "lora_path": "/etc", "load_inplace": True}, "load_inplace"),
    ],
)
def test_what_is_not_loaded(body: dict[str, Any], param: str, lora_server: Server) -> None:
    before = models(lora_server).keys()
    if body.get("lora_path", "").startswith("loras"):
        body = body | {"lora_path": str(folder_of(lora_server) / body["lora_path"])}
    reply = post(lora_server, LOAD, **body)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert models(lora_server).keys() == before
