"""`ref_audio` of a request -> the bytes of a recording.

Three forms: a data URL, an http(s) URL of an allowed host, and the absolute path of a file under
an allowed directory. By default only data URLs are accepted. The addresses of a URL are looked up
once, checked, and connected to as checked; each redirect starts over.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import os
import re
import ssl
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as attribute
from pathlib import Path
from urllib.parse import SplitResult, unquote_to_bytes, urljoin, urlsplit

import httpx

from voxnative.errors import AudioFormatError, AudioInputError, TooLargeError
from voxnative.serving.hosts import HostPolicy

MAX_MEDIA_BYTES = 10_000_000
FETCH_TIMEOUT_S = 10.0
MAX_REDIRECTS = 3

_FORMS = "a data URL, an http(s) URL of an allowed host, or a path under an allowed directory"
_REDIRECTS = (301, 302, 303, 307, 308)
# Servers of files often know no better type than the last ones.
_AUDIO_TYPE = re.compile(r"(audio|video)/.+|application/(octet-stream|ogg)|binary/octet-stream")


@dataclass(frozen=True)
class MediaPolicy:
    """What `ref_audio` may point to.

    Attributes:
        allowed_dirs: directories whose files may be read.
        hosts: whose URLs may be fetched.
        max_bytes: longest accepted recording.
        timeout_s: for a whole fetch, redirects included.
    """

    allowed_dirs: tuple[Path, ...] = ()
    hosts: HostPolicy = attribute(default_factory=HostPolicy)
    max_bytes: int = MAX_MEDIA_BYTES
    timeout_s: float = FETCH_TIMEOUT_S


async def fetch_audio(source: str, policy: MediaPolicy, *, field: str = "ref_audio") -> bytes:
    """The encoded recording that `source` holds or points to.

    Args:
        source: data URL, http(s) URL or absolute path.
        policy: what is allowed.
        field: name of the argument, for error messages.

    Raises:
        AudioInputError: another form, not allowed, or not to be had.
        AudioFormatError: a type that is no audio.
        TooLargeError: more bytes than the policy allows.
    """
    scheme = source[:6].lower()
    if scheme.startswith("data:"):
        return _from_data_url(source, policy, field)
    if scheme.startswith(("http:", "https:")):
        try:
            async with asyncio.timeout(policy.timeout_s):
                return await _from_url(source, policy, field)
        except TimeoutError as error:
            valid = f"a URL that answers within {policy.timeout_s:g} seconds"
            raise AudioInputError(field, source, valid) from error
    if source.startswith("/"):
        return await asyncio.to_thread(_from_file, source, policy, field)
    raise AudioInputError(field, source, _FORMS)


def _from_data_url(source: str, policy: MediaPolicy, field: str) -> bytes:
    """Source: RFC 2397."""
    head, comma, payload = source[len("data:") :].partition(",")
    if not comma:
        raise AudioInputError(field, source, "data:audio/wav;base64,... with a comma")
    media_type, *parameters = head.split(";")
    _check_type(media_type, field)
    if len(payload) > 3 * policy.max_bytes:  # %XX takes three characters a byte
        raise _too_large(field, len(payload), policy)
    is_base64 = bool(parameters) and parameters[-1].strip().lower() == "base64"
    try:
        data = unquote_to_bytes(payload)
        if is_base64:
            data = base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise AudioInputError(field, source, "a data URL with valid base64") from error
    if len(data) > policy.max_bytes:
        raise _too_large(field, len(data), policy)
    return data


async def _from_url(source: str, policy: MediaPolicy, field: str) -> bytes:
    # Without trust_env=False a proxy of the environment would resolve the name anew.
    client = httpx.AsyncClient(trust_env=False, timeout=policy.timeout_s, verify=_tls_context())
    async with client:
        url = source
        for _ in range(MAX_REDIRECTS + 1):
            try:
                location, data = await _get(client, url, policy, field)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                valid = "the URL of a recording that can be fetched"
                raise AudioInputError(field, source, valid) from error
            if location is None:
                return data
            url = urljoin(url, location)
    raise AudioInputError(field, source, f"a URL with at most {MAX_REDIRECTS} redirects")


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """The system's authorities; reading them takes longer than a small fetch."""
    return ssl.create_default_context()


async def _get(
    client: httpx.AsyncClient, url: str, policy: MediaPolicy, field: str
) -> tuple[str | None, bytes]:
    """One hop: the redirect's target, or the body."""
    parts = _checked_url(url, field)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    address = await policy.hosts.resolve(host, port, field=field)
    pinned = httpx.URL(url).copy_with(host=address)
    request = client.build_request(
        "GET",
        pinned,
        headers={"Host": parts.netloc, "Accept-Encoding": "identity"},
        extensions={"sni_hostname": host},
    )
    response = await client.send(request, stream=True)
    try:
        if response.status_code in _REDIRECTS and "location" in response.headers:
            return response.headers["location"], b""
        if response.status_code != httpx.codes.OK:
            valid = f"the URL of a recording (the answer was HTTP {response.status_code})"
            raise AudioInputError(field, url, valid)
        _check_type(response.headers.get("content-type", ""), field)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise AudioFormatError(field, url, "a recording sent without compression")
        return None, await _read_body(response, policy, field)
    finally:
        await response.aclose()


def _checked_url(url: str, field: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is no number
    except ValueError as error:
        raise AudioInputError(field, url, _FORMS) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AudioInputError(field, url, _FORMS)
    if parts.username is not None or parts.password is not None:
        raise AudioInputError(field, url, "a URL without a user name or password")
    return parts


async def _read_body(response: httpx.Response, policy: MediaPolicy, field: str) -> bytes:
    data = bytearray()
    async for part in response.aiter_raw():
        data += part
        if len(data) > policy.max_bytes:
            raise _too_large(field, len(data), policy)
    return bytes(data)


def _from_file(source: str, policy: MediaPolicy, field: str) -> bytes:
    path = Path(source)
    for directory in policy.allowed_dirs:
        if path.is_relative_to(directory):
            return _read_inside(directory, path.relative_to(directory).parts, policy, field)
    raise AudioInputError(field, source, "a path under an allowed directory")


def _read_inside(directory: Path, parts: Sequence[str], policy: MediaPolicy, field: str) -> bytes:
    """Read a file below `directory`, opening one part after the other and following no link.

    Checking the whole path first would leave time to put a link in its place.
    """
    shown = "/".join(parts)
    if not parts or ".." in parts:
        raise AudioInputError(field, shown, "a path under an allowed directory, without '..'")
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for index, part in enumerate(parts):
            kind = os.O_NONBLOCK if index == len(parts) - 1 else os.O_DIRECTORY
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | kind, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise AudioInputError(field, shown, "a regular file")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            data = file.read(policy.max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        valid = "an existing file below an allowed directory, not behind a symbolic link"
        raise AudioInputError(field, shown, valid) from error
    finally:
        os.close(descriptor)
    if len(data) > policy.max_bytes:
        raise _too_large(field, len(data), policy)
    return data


def _check_type(content_type: str, field: str) -> None:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type and not _AUDIO_TYPE.fullmatch(media_type):
        raise AudioFormatError(field, media_type, "a media type audio/...")


def _too_large(field: str, n_bytes: int, policy: MediaPolicy) -> TooLargeError:
    return TooLargeError(field, f"{n_bytes} bytes", f"at most {policy.max_bytes} bytes")
