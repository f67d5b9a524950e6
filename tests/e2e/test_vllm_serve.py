"""vLLM's plain server on a published directory: it loads, and refuses to write text.

The server is started by its module: the command ``vllm`` of the CPU wheel ends in
``PackageNotFoundError``, since the wheel's distribution is not called "vllm".
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import write_checkpoint
from tests.helpers.runtime import free_port

# In the default run test_serve_engine_death.py has such a server, with the routes and other files.
pytestmark = pytest.mark.full_model

START_S = 240


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on pytorch_model.bin beside audiovae.pth, with no option but memory and place."""
    folder = tmp_path_factory.mktemp("served")
    directory: Path = write_checkpoint(folder / "model", lm_file="bin", vae_file="pth")
    port = free_port()
    module = "vllm.entrypoints.launchers.api_server.entry"
    command = [sys.executable, "-m", module, "--model", directory]
    options = ["--kv-cache-memory-bytes", str(64 << 20), "--port", str(port), "--host", "127.0.0.1"]
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen([*command, *options], stdout=output, stderr=output)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_healthy(process, address, log)
        yield address
    finally:
        process.terminate()
        process.wait(60)


def _wait_until_healthy(process: subprocess.Popen, address: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    raise AssertionError(f"not healthy after {START_S} s: {log.read_text()[-3000:]}")


def test_it_serves_the_model(server: str) -> None:
    with urllib.request.urlopen(f"{server}/v1/models") as answer:
        (model,) = json.load(answer)["data"]
    assert model["id"].endswith("model")
    assert model["max_model_len"] == 512


def test_a_text_completion_is_a_clients_error(server: str) -> None:
    body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 5}).encode()
    request = urllib.request.Request(
        f"{server}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    assert caught.value.code == 400
    assert "speech, not text" in caught.value.read().decode()
    with urllib.request.urlopen(f"{server}/health") as answer:
        assert answer.status == 200
