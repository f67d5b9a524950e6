"""The `voxnative:` section of a deploy file: what the operator decides, never a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from voxnative.errors import VoxNativeError
from voxnative.serving.formats.base import RATE_RANGE_HZ

CONFIG_KEY = "voxnative"
BYTES_PER_MB = 1_000_000


class SettingsError(VoxNativeError):
    """A deploy file or a setting in it cannot be used."""


@dataclass(frozen=True)
class ServerSettings:
    """How one server treats its clients.

    Attributes:
        max_concurrency: requests in the engine at once; None takes the engine's
            `max_num_seqs`, of all replicas together. A replica that dies takes its share along.
        max_queue: requests that wait for the engine; one more is answered with 429, and with 503
            after a replica's death.
        request_timeout_s: longest time from arrival to the last generated sample.
        reader_timeout_s: longest time that a client may leave one piece of audio unread.
        default_sample_rate_hz: rate of answers whose request names none; None keeps the
            model's own (MP3 and AAC: 48 kHz).
        max_upload_mb: largest recording, in units of 10**6 bytes.
        voices_dir: where registered voices are kept; None keeps them below the user's data folder.
        allowed_media_dirs: folders from which `ref_audio` may name a file.
        allowed_media_hosts: hosts from which `ref_audio` may be fetched.
        allowed_lora_dirs: folders from which clients may load LoRA adapters.

    Raises:
        SettingsError: a value is out of range or of the wrong type.
    """

    max_concurrency: int | None = None
    max_queue: int = 64
    request_timeout_s: float = 300.0
    reader_timeout_s: float = 60.0
    default_sample_rate_hz: int | None = None
    max_upload_mb: float = 10.0
    voices_dir: str | None = None
    allowed_media_dirs: tuple[str, ...] = ()
    allowed_media_hosts: tuple[str, ...] = ()
    allowed_lora_dirs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check("max_queue", self.max_queue, int, 0)
        for name in ("request_timeout_s", "reader_timeout_s", "max_upload_mb"):
            _check(name, getattr(self, name), float, 0.001)
        if self.max_concurrency is not None:
            _check("max_concurrency", self.max_concurrency, int, 1)
        if self.default_sample_rate_hz is not None:
            _check("default_sample_rate_hz", self.default_sample_rate_hz, int, *RATE_RANGE_HZ)
        if not isinstance(self.voices_dir, str | None):
            raise SettingsError(f"voices_dir: {self.voices_dir!r} is not valid; valid: a path")

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> ServerSettings:
        """Read the section; a key that is not an attribute is an error.

        Raises:
            SettingsError: names the key and the valid ones.
        """
        known = [field.name for field in fields(cls)]
        if not isinstance(given, Mapping):
            raise SettingsError(f"'{CONFIG_KEY}:' is no section of keys; valid: {', '.join(known)}")
        for key in given:
            if key not in known:
                raise SettingsError(
                    f"unknown key '{key}' in '{CONFIG_KEY}:'; valid: {', '.join(known)}"
                )
        values = dict(given)
        for name in ("allowed_media_dirs", "allowed_media_hosts", "allowed_lora_dirs"):
            if name in values:
                values[name] = _strings(name, values[name])
        return cls(**values)

    @property
    def max_upload_bytes(self) -> int:
        return round(self.max_upload_mb * BYTES_PER_MB)

    @property
    def max_body_bytes(self) -> int:
        """Largest request body: one recording in base64, and room for everything else."""
        return self.max_upload_bytes * 4 // 3 + BYTES_PER_MB


def _check(name: str, value: Any, kind: type, low: float, high: float | None = None) -> None:
    wanted = int if kind is int else (int, float)
    is_number = isinstance(value, wanted) and not isinstance(value, bool)
    if not is_number or value < low or (high is not None and value > high):
        what = "a whole number" if kind is int else "a number"
        span = f"from {low:g}" + ("" if high is None else f" to {high:g}")
        raise SettingsError(f"{name}: {value!r} is not valid; valid: {what} {span}")


def _strings(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise SettingsError(f"{name}: {value!r} is not valid; valid: a list of strings")
    return tuple(value)
