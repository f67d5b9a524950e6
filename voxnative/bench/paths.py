"""Where the paths in a matrix lead: to files here, or to a data set on the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

import voxnative
from voxnative.bench.errors import BenchError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def find_path(given: str, matrix: Path) -> Path | None:
    """A path of a matrix, looked for from here, from the matrix's folders up, and beside us.

    Args:
        given: as the matrix has it.
        matrix: the matrix file.

    Returns:
        An existing path; None where there is none.
    """
    beside_us = Path(voxnative.__file__).parent.parent
    for folder in (Path.cwd(), *matrix.resolve().parents, beside_us):
        path = folder / Path(given).expanduser()
        if path.exists():
            return path.resolve()
    return None


def find_dataset(given: str, locale: str, matrix: Path) -> Path:
    """The directory of a data set; one that is not here is fetched from the Hugging Face Hub.

    Raises:
        BenchError: it is not here and cannot be fetched.
    """
    found = find_path(given, matrix)
    if found is not None:
        return found
    if not _HUB_ID.fullmatch(given):
        raise BenchError(f"dataset_path {given}: no such directory; --dataset DIR uses another")
    from httpx import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(given, repo_type="dataset", allow_patterns=[f"{locale}/**"])
    except (HfHubHTTPError, LocalEntryNotFoundError, HTTPError, OSError) as error:
        raise BenchError(
            f"dataset_path {given}: no such directory, and the Hugging Face Hub did not give it"
            f" ({type(error).__name__}); --dataset DIR uses another"
        ) from error
    return Path(folder)


def shown_model(model: str) -> str:
    """A checkpoint in a report: a Hugging Face id, or the last part of a directory's path."""
    return Path(model).name if Path(model).is_dir() else model
