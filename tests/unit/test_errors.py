"""The error tree and its messages."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from voxnative import errors


def test_message_names_field_value_and_valid_set() -> None:
    error = errors.ParameterError("cfg", 99, "0.0 to 10.0")
    assert str(error) == "field 'cfg': 99 is not valid; valid: 0.0 to 10.0"
    assert (error.field, error.value, error.valid) == ("cfg", 99, "0.0 to 10.0")


@pytest.mark.parametrize("kind", [errors.TextError, errors.ParameterError, errors.AudioInputError])
def test_request_errors_are_value_errors(kind: type[errors.InvalidRequestError]) -> None:
    error = kind("f", 1, "2")
    assert isinstance(error, errors.InvalidRequestError)
    assert isinstance(error, errors.VoxNativeError)
    assert isinstance(error, ValueError)


def test_all_errors_share_one_root() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
    assert len(kinds) == 12
    assert all(issubclass(kind, errors.VoxNativeError) for kind in kinds)


def test_a_piece_error_says_where_and_not_what() -> None:
    error = errors.PieceError(3, 9, 120, 180, "it did not end")
    assert isinstance(error, errors.EngineError)
    assert str(error) == ("piece 3 of 9 (characters 120 to 180 of the text) failed: it did not end")
    assert (error.index, error.start, error.end) == (3, 120, 180)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"\0" * 9000, "<9000 bytes>"),
        (np.zeros((2, 48_000), np.float32), "<array of shape (2, 48000), float32>"),
        ("a" * 500, "'" + "a" * 76 + "..."),
    ],
)
def test_long_values_are_shortened(value: object, shown: str) -> None:
    assert errors.shorten(value) == shown
    assert len(errors.shorten(value)) <= errors.MAX_VALUE_CHARS


def test_request_errors_survive_a_process_border() -> None:
    error = pickle.loads(pickle.dumps(errors.TextError("text", "", "some text")))
    assert isinstance(error, errors.TextError)
    assert (error.field, error.valid) == ("text", "some text")


def test_missing_extra_names_the_command() -> None:
    error = errors.MissingExtraError("gradio", "demo")
    assert "pip install 'voxnative[demo]'" in str(error)
    assert isinstance(error, ImportError)


def test_checkpoint_error_keeps_its_path() -> None:
    assert errors.CheckpointError("no config.json", "some/dir").path.name == "dir"
    assert errors.CheckpointError("no such model").path is None
