"""`ref_audio`: what is allowed is read, and no form of address leads anywhere else."""

from __future__ import annotations

import asyncio
import base64
import gzip
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from voxnative.errors import AudioFormatError, AudioInputError, TooLargeError
from voxnative.serving.hosts import HostPolicy
from voxnative.serving.media import MediaPolicy, fetch_audio

RECORDING = b"RIFF....WAVEfmt the bytes of a recording"
LOOPBACK = HostPolicy.parse(["127.0.0.0/8"])


@dataclass
class Site:
    """A web server on the loopback interface that answers by path and counts its visitors."""

    port: int
    paths: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)

    def url(self, path: str = "/voice.wav", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


def answers(site: Site) -> dict[str, tuple[int, dict[str, str], bytes]]:
    wav = {"Content-Type": "audio/wav"}
    return {
        "/voice.wav": (200, wav, RECORDING),
        "/no-type": (200, {}, RECORDING),
        "/bytes": (200, {"Content-Type": "application/octet-stream"}, RECORDING),
        "/page": (200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>"),
        "/zipped": (200, wav | {"Content-Encoding": "gzip"}, gzip.compress(bytes(10**6))),
        "/long": (200, wav, bytes(5000)),
        "/moved": (302, {"Location": "/voice.wav"}, b""),
        "/circle": (302, {"Location": "/circle"}, b""),
        "/to-file": (302, {"Location": "file:///etc/passwd"}, b""),
        "/to-v6": (307, {"Location": f"http://[::1]:{site.port}/voice.wav"}, b""),
        "/to-name": (301, {"Location": f"http://localhost:{site.port}/voice.wav"}, b""),
        "/to-metadata": (302, {"Location": "http://169.254.169.254/latest"}, b""),
    }


@pytest.fixture
def site() -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.paths.append(self.path)
            state.hosts.append(self.headers["Host"])
            if self.path == "/slow":
                time.sleep(2)
            status, headers, body = answers(state).get(self.path, (404, {}, b"no such page"))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
    state = Site(server.server_port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(source: str, **policy: object) -> bytes:
    return asyncio.run(fetch_audio(source, MediaPolicy(**policy)))


def refuse(source: str, valid: str, kind: type = AudioInputError, **policy: object) -> None:
    with pytest.raises(kind) as caught:
        fetch(source, **policy)
    assert caught.value.field == "ref_audio"
    assert valid in caught.value.valid


def resolve_as(monkeypatch: pytest.MonkeyPatch, *rounds: list[str]) -> list[str]:
    """Let the system's resolver give other addresses at each look-up; returns the names asked."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[tuple]:
        addresses = rounds[min(len(asked), len(rounds) - 1)]
        asked.append(host)
        families = [socket.AF_INET6 if ":" in a else socket.AF_INET for a in addresses]
        return [
            (family, socket.SOCK_STREAM, 6, "", (address, port))
            for family, address in zip(families, addresses, strict=True)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


# Data URLs


@pytest.mark.parametrize(
    "url",
    [
        "data:audio/wav;base64," + base64.b64encode(RECORDING).decode(),
        "DATA:audio/mpeg;codecs=mp3;base64," + base64.b64encode(RECORDING).decode(),
        "data:;base64," + base64.b64encode(RECORDING).decode(),
        "data:audio/wav," + "".join(f"%{byte:02x}" for byte in RECORDING),
    ],
)
def test_data_urls(url: str) -> None:
    assert fetch(url) == RECORDING


@pytest.mark.parametrize(
    ("url", "kind", "valid"),
    [
        ("data:audio/wav;base64", AudioInputError, "with a comma"),
        ("data:audio/wav;base64,###", AudioInputError, "valid base64"),
        ("data:audio/wav;base64,AAA", AudioInputError, "valid base64"),
        ("data:text/html;base64,AAAA", AudioFormatError, "audio/"),
        ("data:image/png;base64,AAAA", AudioFormatError, "audio/"),
        ("data:audio/wav;base64," + "A" * 200, TooLargeError, "at most 100 bytes"),
        ("data:audio/wav;base64," + "A" * 2000, TooLargeError, "at most 100 bytes"),
    ],
)
def test_bad_data_urls(url: str, kind: type, valid: str) -> None:
    refuse(url, valid, kind, max_bytes=100)


@pytest.mark.parametrize(
    "source",
    [
        *("", "voice.wav", "../voice.wav", "~/voice.wav", "file:///etc/passwd", "FILE:/etc/passwd"),
        *("ftp://a/b.wav", "gopher://127.0.0.1/", "concat:a|b", "subfile,,start,0,end,9,,:a"),
    ],
)
def test_other_forms_are_refused(source: str, tmp_path: Path) -> None:
    refuse(source, "a data URL", allowed_dirs=(Path("/etc"), tmp_path), hosts=LOOPBACK)


# URLs


@pytest.mark.parametrize("path", ["/voice.wav", "/no-type", "/bytes", "/moved"])
def test_urls_of_an_allowed_host(site: Site, path: str) -> None:
    assert fetch(site.url(path), hosts=LOOPBACK) == RECORDING


@pytest.mark.parametrize(
    ("path", "kind", "valid"),
    [
        ("/page", AudioFormatError, "audio/"),
        ("/zipped", AudioFormatError, "without compression"),
        ("/long", TooLargeError, "at most 1000 bytes"),
        ("/none", AudioInputError, "HTTP 404"),
        ("/circle", AudioInputError, "at most 3 redirects"),
    ],
)
def test_answers_that_are_no_recording(site: Site, path: str, kind: type, valid: str) -> None:
    refuse(site.url(path), valid, kind, hosts=LOOPBACK, max_bytes=1000)


def test_a_slow_answer_is_not_waited_for(site: Site) -> None:
    refuse(site.url("/slow"), "within 0.5 seconds", hosts=LOOPBACK, timeout_s=0.5)


@pytest.mark.parametrize("path", ["/to-file", "/to-v6", "/to-name", "/to-metadata"])
def test_a_redirect_leads_to_no_other_place(site: Site, path: str) -> None:
    with pytest.raises(AudioInputError):
        fetch(site.url(path), hosts=LOOPBACK)
    assert site.paths == [path]  # nothing was fetched behind the redirect


def test_without_a_list_nothing_is_fetched(site: Site) -> None:
    refuse(site.url(), "a host on the server's list")
    refuse(site.url(host="localhost"), "a host on the server's list")
    assert site.paths == []


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "2130706433", "0x7f.0.0.1", "0177.0.0.1", "0.0.0.0", "localhost"),
        *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]"),
        *("user:word@127.0.0.1", "cdn.test@127.0.0.1", "cdn.test.evil.test", "evilcdn.test"),
    ],
)
def test_this_machine_cannot_be_reached_by_another_spelling(site: Site, host: str) -> None:
    hosts = HostPolicy.parse(["cdn.test", "*.voices.test", "8.8.8.8", "10.0.0.0/8"])
    with pytest.raises(AudioInputError):
        fetch(site.url(host=host), hosts=hosts)
    assert site.paths == []


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1"),
        *("::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::", "2001:0:1:2:3:4:5:6"),
    ],
)
def test_a_listed_name_at_a_private_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    hosts = HostPolicy.parse(["cdn.test"])
    resolve_as(monkeypatch, ["93.184.216.34", address])  # one bad address spoils the rest
    refuse("http://cdn.test/voice.wav", "at a public address", hosts=hosts)


def test_a_listed_name_at_a_public_address(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = HostPolicy.parse(["cdn.test", "*.voices.test"])
    asked = resolve_as(monkeypatch, ["93.184.216.34", "2606:2800:220:1::1"])
    for host in ("cdn.test", "CDN.TEST.", "a.voices.test", "a.b.voices.test"):
        assert asyncio.run(hosts.resolve(host, 80, field="ref_audio")) == "93.184.216.34"
    assert len(asked) == 4


def test_the_checked_address_is_the_one_connected_to(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A second look-up would lead to an address that the list does not cover.
    asked = resolve_as(monkeypatch, ["127.0.0.5"], ["169.254.169.254"])
    hosts = HostPolicy.parse(["cdn.test", "127.0.0.5"])
    assert fetch(site.url(host="cdn.test"), hosts=hosts) == RECORDING
    assert asked == ["cdn.test"]
    assert site.hosts == [f"cdn.test:{site.port}"]  # the name still reaches the server


def test_each_redirect_is_looked_up_and_checked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = resolve_as(monkeypatch, ["127.0.0.5"], ["127.0.0.6"])
    hosts = HostPolicy.parse(["cdn.test", "127.0.0.5"])
    refuse(site.url("/moved", host="cdn.test"), "at a public address", hosts=hosts)
    assert asked == ["cdn.test", "cdn.test"]
    assert site.paths == ["/moved"]


def test_a_proxy_of_the_environment_is_not_used(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert fetch(site.url(), hosts=LOOPBACK) == RECORDING


def test_a_name_that_cannot_be_resolved() -> None:
    hosts = HostPolicy.parse(["nowhere.invalid"])
    refuse("http://nowhere.invalid/voice.wav", "can be resolved", hosts=hosts)


def test_a_host_that_does_not_answer() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    refuse(f"http://127.0.0.1:{port}/", "can be fetched", hosts=LOOPBACK, timeout_s=5)


@pytest.mark.parametrize("url", ["http://", "http:///voice.wav", "http://a:b:c/", "http://[::1/"])
def test_urls_without_a_host(url: str) -> None:
    refuse(url, "a data URL", hosts=LOOPBACK)


@pytest.mark.parametrize("entry", ["http://cdn.test", "a b", "", "cdn.test/path", "10.0.0.1/8"])
def test_bad_entries_of_the_list(entry: str) -> None:
    with pytest.raises(ValueError, match="no host name, address or network"):
        HostPolicy.parse([entry])


# Files


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """An allowed directory beside a secret one, with links from the first to the second."""
    (tmp_path / "shelf" / "inner").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "voice.wav").write_bytes(b"secret")
    shelf = tmp_path / "shelf"
    (shelf / "voice.wav").write_bytes(RECORDING)
    (shelf / "inner" / "voice.wav").write_bytes(RECORDING)
    (shelf / "link.wav").symlink_to(tmp_path / "secret" / "voice.wav")
    (shelf / "inside.wav").symlink_to(shelf / "voice.wav")
    (shelf / "folder").symlink_to(tmp_path / "secret")
    os.mkfifo(shelf / "pipe")
    return shelf


@pytest.mark.parametrize(
    "name", ["voice.wav", "inner/voice.wav", "inner//voice.wav", "./voice.wav", "voice.wav/"]
)
def test_files_of_an_allowed_directory(shelf: Path, name: str) -> None:
    assert fetch(f"{shelf}/{name}", allowed_dirs=(shelf,)) == RECORDING


@pytest.mark.parametrize(
    "name",
    [
        *("../secret/voice.wav", "inner/../../secret/voice.wav", "inner/../voice.wav"),
        *("link.wav", "inside.wav", "folder/voice.wav", "none.wav", "inner", "pipe", "", "a\0b"),
        *("voice.wav/x", "%2e%2e/secret/voice.wav", "x" * 300),
    ],
)
def test_paths_that_lead_out_or_to_no_file(shelf: Path, name: str) -> None:
    with pytest.raises(AudioInputError):
        fetch(f"{shelf}/{name}", allowed_dirs=(shelf,))


def test_paths_outside_of_every_allowed_directory(shelf: Path) -> None:
    refuse(str(shelf / "voice.wav"), "a path under an allowed directory")
    refuse("/etc/passwd", "a path under an allowed directory", allowed_dirs=(shelf,))
    sibling = shelf.with_name("shelf-2")
    sibling.mkdir()
    (sibling / "voice.wav").write_bytes(b"secret")
    refuse(f"{sibling}/voice.wav", "a path under an allowed directory", allowed_dirs=(shelf,))


def test_a_long_file(shelf: Path) -> None:
    policy = {"allowed_dirs": (shelf,), "max_bytes": 9}
    refuse(f"{shelf}/voice.wav", "at most 9 bytes", TooLargeError, **policy)


def test_no_descriptor_stays_open(shelf: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for name in ("voice.wav", "inner/voice.wav", "link.wav", "folder/voice.wav", "inner", "pipe"):
        try:
            fetch(f"{shelf}/{name}", allowed_dirs=(shelf,))
        except AudioInputError:
            continue
    assert len(os.listdir("/proc/self/fd")) == before
