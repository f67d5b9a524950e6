"""Who may write where: the result alone on standard output, and a line of progress.

vLLM, its engine process and native libraries all write to file descriptors 1 and 2. While a
command runs, those two lead into a log, and the command keeps the real ones to itself.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, TextIO

LOG_TAIL_LINES = 20


@dataclass(frozen=True)
class Streams:
    """The real standard streams of a command.

    Attributes:
        out: standard output, unbuffered; `write` sends the result there.
        err: standard error, for progress and errors.
        log: what everything else printed; None where that goes to standard error.
    """

    out: io.RawIOBase
    err: TextIO
    log: BinaryIO | None

    def write(self, result: bytes) -> None:
        """Write all of it to standard output.

        Raises:
            OSError: it was closed, or its disk is full.
        """
        left = memoryview(result)
        while left:
            left = left[self.out.write(left) :]

    def log_tail(self) -> str:
        """The last lines of the log, each with its end, to explain a failure."""
        if self.log is None:
            return ""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "".join(f"{line}\n" for line in lines)


@contextlib.contextmanager
def claimed_streams(verbose: bool) -> Iterator[Streams]:
    """Take descriptors 1 and 2 for the command; both are put back at the end.

    Args:
        verbose: let everything else write to standard error instead of the log.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(os.fdopen(os.dup(1), "wb", buffering=0))
        err = stack.enter_context(os.fdopen(os.dup(2), "w", buffering=1, errors="replace"))
        log = None if verbose else stack.enter_context(tempfile.TemporaryFile())
        os.dup2(err.fileno() if log is None else log.fileno(), 1)
        os.dup2(err.fileno() if log is None else log.fileno(), 2)
        stack.callback(os.dup2, out.fileno(), 1)
        stack.callback(os.dup2, err.fileno(), 2)
        stack.callback(sys.stdout.flush)  # first: what was printed meanwhile is no result
        stack.callback(sys.stderr.flush)
        yield Streams(out, err, log)


class Progress:
    """One line that is written over on a terminal; elsewhere only its last state is written."""

    def __init__(self, err: TextIO) -> None:
        self._err = err
        self._line = ""

    def show(self, line: str) -> None:
        if self._err.isatty():
            self._err.write(f"\r{line}{' ' * (len(self._line) - len(line))}")
            self._err.flush()
        self._line = line

    def end(self) -> None:
        self._err.write("\n" if self._err.isatty() else f"{self._line}\n")
