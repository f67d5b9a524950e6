"""Errors in OpenAI's shape, and the speech route on a scripted engine."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import TypeAdapter, ValidationError

from tests.unit.serving.scripted import Scripted, ScriptedSpeech
from voxnative.errors import (
    AudioFormatError,
    AudioInputError,
    EngineError,
    MissingExtraError,
    ParameterError,
    PieceError,
    ReplicaLostError,
    TextError,
    TooLargeError,
)
from voxnative.serving import batch, speech
from voxnative.serving.http_errors import RequestFailed, as_failure, queue_full, share_lost
from voxnative.serving.settings import ServerSettings

SPEECH = "/v1/audio/speech"


def client_of(scripted: Scripted) -> TestClient:
    app = FastAPI()
    app.include_router(speech.router)
    app.include_router(batch.router)
    app.state.voxnative = scripted.server
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (TextError("input", "", "some"), 400, "invalid_request_error", "invalid_value"),
        (ParameterError("seed", -1, "0"), 400, "invalid_request_error", "invalid_value"),
        (AudioInputError("ref_audio", b"", "x"), 400, "invalid_request_error", "invalid_value"),
        (
            AudioFormatError("ref_audio", b"", "x"),
            415,
            "invalid_request_error",
            "unsupported_audio",
        ),
        (TooLargeError("ref_audio", b"", "x"), 413, "invalid_request_error", "too_large"),
        (EngineError("it failed"), 500, "server_error", "engine_error"),
        (ReplicaLostError("try again"), 503, "server_error", "replica_lost"),
        (queue_full(3), 429, "rate_limit_error", "queue_full"),
        (share_lost(3), 503, "server_error", "share_lost"),
    ],
)
def test_every_error_has_a_status(error: Exception, status: int, kind: str, code: str) -> None:
    failure = as_failure(error)
    assert failure is not None
    assert failure.status == status
    content = failure.body["error"]
    assert (content["type"], content["code"]) == (kind, code)
    assert content["param"] == getattr(error, "field", None)


def test_a_piece_says_that_its_replica_was_lost() -> None:
    piece = PieceError(1, 3, 5, 9, "it failed")
    for cause, status, code in (
        (None, 500, "piece_failed"),
        (EngineError("it failed"), 500, "piece_failed"),
        (ReplicaLostError("try again"), 503, "replica_lost"),
    ):
        piece.__cause__ = cause
        failure = as_failure(piece)
        assert failure is not None
        assert (failure.status, failure.body["error"]["code"]) == (status, code)


def test_what_nobody_foresaw_has_none() -> None:
    assert as_failure(KeyError("x")) is None


@pytest.mark.parametrize(
    ("content", "param", "code"),
    [
        (b'{"input": "hi", "speed": 9}', "speed", "invalid_value"),
        (b'{"input": "hi", "colour": 1}', "colour", "invalid_value"),
        (b'{"voice": "alloy"}', "input", "missing_field"),
        (b'{"input": "hi"', None, "invalid_value"),
        (b"[]", None, "invalid_value"),
        (b"\xff\xfe", None, "invalid_value"),
        (b"\xff\xff", None, "http_error"),
        (b"", None, "missing_field"),
        (b'{"input": "\\ud800"}', "input", "invalid_value"),
        (b'{"input": "hi", "seed": 1e400}', "seed", "invalid_value"),
        (b'{"input": "hi", "cfg_value": NaN}', "cfg_value", "invalid_value"),
    ],
)
def test_bad_bodies(content: bytes, param: str | None, code: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client_of(Scripted()).post(SPEECH, content=content, headers=headers)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)


def test_a_batch_names_the_item() -> None:
    body = {"items": [{"input": "a"}, {"input": "b", "ref_text": "c"}]}
    answer = client_of(Scripted()).post(f"{SPEECH}/batch", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "items.1.ref_text"


def test_a_batch_without_any_audio_has_the_status_of_its_error() -> None:
    body = {"items": [{"input": "a"}, {"input": "b"}]}
    client = client_of(Scripted(ScriptedSpeech(fails_at=1)))
    answer = client.post(f"{SPEECH}/batch", json=body)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "engine_error"


def test_a_body_beyond_the_limit() -> None:
    scripted = Scripted(settings=ServerSettings(max_upload_mb=0.001))
    answer = client_of(scripted).post(SPEECH, json={"input": "x" * 1_100_000})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "too_large"


def test_another_model_is_not_found() -> None:
    answer = client_of(Scripted()).post(SPEECH, json={"input": "hi", "model": "llama"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert "valid: tiny" in answer.json()["error"]["message"]


def test_a_dead_engine() -> None:
    scripted = Scripted(ScriptedSpeech(errored=True))
    answer = client_of(scripted).post(SPEECH, json={"input": "hi"})
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_dead"


@pytest.mark.parametrize("fields", [{}, {"stream": False}, {"stream_format": "sse"}])
def test_an_error_before_the_first_audio_is_a_status(fields: dict[str, Any]) -> None:
    scripted = Scripted(ScriptedSpeech(fails_at=0))
    answer = client_of(scripted).post(SPEECH, json={"input": "hi", **fields})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "engine_error"


def test_a_full_queue_says_when_to_come_back() -> None:
    scripted = Scripted(settings=ServerSettings(max_queue=0))
    scripted.server.admission._slots._value = 0  # all slots are held
    answer = client_of(scripted).post(SPEECH, json={"input": "hi"})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1


def test_a_defect_is_logged_without_its_message(caplog: pytest.LogCaptureFixture) -> None:
    class Defective(ScriptedSpeech):
        async def prepare_long(self, text: str, **arguments: Any) -> Any:
            raise RuntimeError(f"cannot say {text!r}")

    logging.getLogger("vllm").addHandler(caplog.handler)
    try:
        answer = client_of(Scripted(Defective())).post(SPEECH, json={"input": "a secret"})
    finally:
        logging.getLogger("vllm").removeHandler(caplog.handler)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "RuntimeError in a speech route" in caplog.text
    assert "secret" not in caplog.text


def test_the_error_shape_is_documented() -> None:
    paths = client_of(Scripted()).get("/openapi.json").json()["paths"]
    for status in ("400", "404", "413", "415", "429", "500", "503", "504"):
        assert status in paths[SPEECH]["post"]["responses"]
    json.dumps(paths)


def test_a_failure_keeps_its_headers() -> None:
    response = RequestFailed(429, "a", "b", "c", headers={"Retry-After": "2"}).response()
    assert response.headers["retry-after"] == "2"
    with pytest.raises(ValidationError):
        TypeAdapter(int).validate_json(response.body)


def test_a_missing_package_is_the_servers_lack() -> None:
    failure = as_failure(MissingExtraError("wetext", "wetext"))
    assert failure is not None
    assert failure.status == 501
    assert "pip install 'voxnative[wetext]'" in failure.body["error"]["message"]


def test_a_whole_answer_says_why_it_ended() -> None:
    answer = client_of(Scripted()).post(SPEECH, json={"input": "hi", "response_format": "wav"})
    assert answer.status_code == 200
    assert answer.headers["x-finish-reason"] == "stop"


def test_a_batch_says_why_each_item_ended() -> None:
    body = {"items": [{"input": "a"}, {"input": "b"}], "response_format": "wav"}
    answer = client_of(Scripted()).post(f"{SPEECH}/batch", json=body)
    assert [result["finish_reason"] for result in answer.json()["results"]] == ["stop", "stop"]
