"""`examples/online_serving`: the server's script, the client in all its ways, and plain fetch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.e2e.test_serve_demo import Page, browser, demo_url, page  # noqa: F401  the browser's
from tests.helpers.runtime import Server, serve

pytestmark = [
    pytest.mark.tts,
    pytest.mark.advanced_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

EXAMPLES = Path(__file__).parents[2] / "examples" / "online_serving"
MODEL_HZ = 16_000


@pytest.fixture(scope="module")
def script_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """What the script starts, with pages of other origins let in."""
    folder = tmp_path_factory.mktemp("script_server")
    command = [str(EXAMPLES / "run_server.sh"), "--allowed-origins", '["*"]']
    with serve(command, folder, XDG_DATA_HOME=str(folder)) as server:
        yield server


def client(server: Server, *arguments: str, said: str = "") -> str:
    """Run the client to its end; returns what it prints."""
    command = [sys.executable, EXAMPLES / "speech_client.py", *arguments]
    done = subprocess.run(
        [*command, "--server", server.address],
        input=said,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def seconds(path: Path) -> float:
    samples, rate_hz = soundfile.read(path)
    assert np.abs(samples).max() > 0.01
    return len(samples) / rate_hz


@pytest.mark.parametrize("how", ["sync", "stream"])
def test_a_file(speech_server: Server, tmp_path: Path, how: str) -> None:
    printed = client(speech_server, how, "hello there.", "-o", str(tmp_path / "hello.mp3"))
    assert seconds(tmp_path / "hello.mp3") > 0.3
    assert ("first audio after" in printed) == (how == "stream")


def test_many_at_once(speech_server: Server, tmp_path: Path) -> None:
    client(speech_server, "async", "one.", "two.", "three.", "-o", str(tmp_path / "out"))
    files = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in files] == ["0.mp3", "1.mp3", "2.mp3"]
    assert all(seconds(path) > 0.3 for path in files)


def test_samples_as_they_arrive(speech_server: Server, tmp_path: Path) -> None:
    client(speech_server, "play", "hello there.", "-o", str(tmp_path / "hello.wav"))
    assert seconds(tmp_path / "hello.wav") > 0.3
    assert soundfile.info(tmp_path / "hello.wav").samplerate == MODEL_HZ


def test_text_while_it_is_being_written(speech_server: Server, tmp_path: Path) -> None:
    client(speech_server, "play", "hello there.", "-o", str(tmp_path / "one.wav"))
    said = "hello there.\nhow are you today?\n"
    client(speech_server, "live", "-o", str(tmp_path / "all.wav"), said=said)
    assert seconds(tmp_path / "all.wav") > seconds(tmp_path / "one.wav")


@pytest.mark.full_model
def test_the_servers_script(script_server: Server, tmp_path: Path) -> None:
    client(script_server, "sync", "hello there.", "-o", str(tmp_path / "hello.mp3"))
    assert seconds(tmp_path / "hello.mp3") > 0.3


@pytest.mark.full_model
def test_fetch_in_a_browser(page: Page, script_server: Server) -> None:  # noqa: F811
    """The snippet runs on a page of another origin."""
    source = (EXAMPLES / "speech_fetch.mjs").read_text()
    counted = page.driver.execute_async_script(
        """
        const [source, server, done] = arguments;
        const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
        import(url).then(async ({ speech, play }) => {
          let n = 0, pieces = 0, rate = 0;
          for await (const piece of speech("hello there.", { seed: 1 }, server)) {
            n += piece.samples.length;
            pieces += 1;
            rate = piece.rate;
          }
          await play("hello there.", { seed: 1 }, server);
          const refusal = await play("hello", { speed: 9 }, server).catch((e) => e.message);
          done({ n, pieces, rate, refusal });
        }).catch((error) => done({ error: String(error) }));
        """,
        source,
        script_server.address,
    )
    assert "error" not in counted, counted
    assert counted["rate"] == MODEL_HZ
    assert counted["pieces"] > 1
    assert counted["n"] > MODEL_HZ // 4
    played = page.played()
    assert sum(block["duration"] for block in played) == pytest.approx(counted["n"] / MODEL_HZ)
    assert "field 'speed'" in counted["refusal"]
