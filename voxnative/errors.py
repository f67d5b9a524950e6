"""The error tree: every error says which field, which value and what would be valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MAX_VALUE_CHARS = 80


def shorten(value: Any) -> str:
    """Show a value in a message without dumping audio or a long text."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<array of shape {tuple(value.shape)}, {value.dtype}>"
    if isinstance(value, Path):
        value = str(value)
    shown = " ".join(repr(value).split())  # one line, whatever the value prints
    return shown if len(shown) <= MAX_VALUE_CHARS else shown[: MAX_VALUE_CHARS - 3] + "..."


class VoxNativeError(Exception):
    """Base of everything that voxnative raises on purpose."""


class InvalidRequestError(VoxNativeError, ValueError):
    """A request is refused before the engine sees it.

    Args:
        field: name of the offending argument.
        value: what was given; shortened in the message.
        valid: what would have been accepted, in words.
    """

    def __init__(self, field: str, value: Any, valid: str) -> None:
        super().__init__(field, value, valid)
        self.field = field
        self.value = value
        self.valid = valid

    def __str__(self) -> str:
        return f"field '{self.field}': {shorten(self.value)} is not valid; valid: {self.valid}"


class TextError(InvalidRequestError):
    """The text is empty, blank, or does not fit the context."""


class ParameterError(InvalidRequestError):
    """A sampling parameter or a combination of arguments is out of range."""


class AudioInputError(InvalidRequestError):
    """A reference or prompt recording is empty, silent, unreadable or too long."""


class AudioFormatError(AudioInputError):
    """A recording that no decoder reads, or a type that is no audio (HTTP 415)."""


class TooLargeError(InvalidRequestError):
    """More bytes than are accepted (HTTP 413)."""


class CheckpointError(VoxNativeError):
    """A checkpoint cannot be found, read or matched with the model.

    Args:
        message: what is wrong, naming the file, key or tensor.
        path: the checkpoint directory or file, where there is one.
    """

    def __init__(self, message: str, path: str | Path | None = None) -> None:
        super().__init__(message)
        self.path = None if path is None else Path(path)


class EngineError(VoxNativeError):
    """The engine died, or a request failed inside it."""


class ReplicaLostError(EngineError):
    """The data-parallel replica that ran the request has died; others live, so try again."""


class PieceError(EngineError):
    """A piece of a long text could not be spoken; everything before it was.

    Args:
        index: of the piece; a call with ``first_piece=index`` goes on from there.
        n_pieces: of the text.
        start: first character of the piece, in the whole text.
        end: behind its last character.
        reason: what happened, in words.
    """

    def __init__(self, index: int, n_pieces: int, start: int, end: int, reason: str) -> None:
        super().__init__(index, n_pieces, start, end, reason)
        self.index = index
        self.n_pieces = n_pieces
        self.start = start
        self.end = end
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"piece {self.index} of {self.n_pieces} (characters {self.start} to {self.end} of the "
            f"text) failed: {self.reason}"
        )


class MissingExtraError(VoxNativeError, ImportError):
    """An optional package is not installed.

    Args:
        package: the import that failed.
        extra: the extra of voxnative that brings it.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(package, extra)
        self.package = package
        self.extra = extra

    def __str__(self) -> str:
        return (
            f"'{self.package}' is not installed; "
            f"it comes with: pip install 'voxnative[{self.extra}]'"
        )
