"""The demo page in a real browser: type, hear it while it streams, read the numbers, add a voice.

The browser is found on the path as `chromium` or `google-chrome`, its driver as `chromedriver`.
Where they are missing, `make browser` installs Debian's; `make test` does so first.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile as sf
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.helpers.runtime import Server, free_port

pytestmark = [
    pytest.mark.tts,
    pytest.mark.advanced_model,
    pytest.mark.hardware_test(res="cpu", num_cards=0),
]

PAGE_S = 60
SPEECH_S = 60
SENTENCE = "good morning. the weather is very nice today, and we will go for a long walk."
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--window-size=1200,1400",
)
# Keeps what the page plays: when each block was started and for when, in the page's own clock.
RECORDER = """
window.played = [];
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (when) {
  const state = document.getElementById("vox-status").dataset.state;
  window.played.push({ when, state, peak: Math.max(...this.buffer.getChannelData(0)),
    duration: this.buffer.duration, rate: this.buffer.sampleRate });
  return start.call(this, when);
};
"""


@pytest.fixture(scope="module")
def demo_url(speech_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``voxnative demo`` in front of the shared server."""
    port = free_port()
    script = Path(sys.executable).with_name("voxnative")
    log = tmp_path_factory.mktemp("demo") / "log"
    command = [script, "demo", "--server", speech_server.address, "--port", str(port)]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PAGE_S
        while not _answers(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False


class Page:
    """The open page."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        driver.get(url)
        self.wait(lambda: self.find("#vox-voice input").get_attribute("value") != "")
        driver.execute_script(RECORDER)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, element_id: str) -> str:
        return self.driver.execute_script(
            "return document.getElementById(arguments[0]).textContent", element_id
        )

    @property
    def state(self) -> str:
        return self.driver.execute_script(
            "return document.getElementById('vox-status').dataset.state"
        )

    def wait(self, condition: Any, limit_s: float = PAGE_S) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                if condition():
                    return
            except Exception:
                if time.monotonic() > deadline:
                    raise
            assert time.monotonic() < deadline, self.find("body").text[-2000:]
            time.sleep(0.1)

    def type(self, selector: str, text: str) -> None:
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def click(self, selector: str) -> None:
        self.driver.execute_script("arguments[0].scrollIntoView()", self.find(selector))
        self.find(selector).click()

    def speak(self, text: str) -> None:
        self.type("#vox-text textarea", text)
        self.click("#vox-speak")

    def played(self) -> list[dict[str, Any]]:
        return self.driver.execute_script("return window.played")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    folder = tmp_path_factory.mktemp("browser")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    assert chromium, "no browser is installed: run `make browser`"
    assert chromedriver, "the browser's driver is not installed: run `make browser`"
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(chromedriver, env={**os.environ, "HOME": str(folder)})
    driver = webdriver.Chrome(options, service)
    driver.set_script_timeout(SPEECH_S)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def page(demo_url: str, browser: webdriver.Chrome) -> Page:
    """The page, loaded anew; what earlier pages wrote to the browser's log is gone."""
    browser.get_log("browser")
    return Page(browser, demo_url)


def columns_drawn(page: Page) -> int:
    """Columns of the waveform that hold anything."""
    return page.driver.execute_script(
        """
        const canvas = document.getElementById("vox-waveform");
        const { width, height } = canvas;
        const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
        const drawn = new Set();
        for (let i = 0; i < width * height; i++) if (pixels[4 * i + 3]) drawn.add(i % width);
        return drawn.size;
        """
    )


def test_speech_is_heard_while_it_streams(page: Page) -> None:
    page.speak(SENTENCE)
    page.wait(lambda: page.state == "speaking", SPEECH_S)
    early, drawn_early = page.played(), columns_drawn(page)
    page.wait(lambda: page.state == "done", SPEECH_S)
    blocks = page.played()

    assert 0 < len(early) < len(blocks)  # there was sound before the speech was complete
    assert drawn_early > 0
    starts = [block["when"] for block in blocks]
    assert starts == sorted(starts)
    assert starts[0] > 0
    assert max(block["peak"] for block in blocks) > 0.01
    seconds = sum(block["duration"] for block in blocks)
    assert seconds > 2
    assert columns_drawn(page) > 100

    ttfa_ms = float(page.text("vox-ttfa").removesuffix(" ms"))
    rtf = float(page.text("vox-rtf"))
    assert 0 < ttfa_ms < 1000 * rtf * seconds
    assert rtf > 0
    assert float(page.text("vox-length").removesuffix(" s")) == pytest.approx(seconds, abs=0.02)


def test_the_recording_can_be_played_again(page: Page) -> None:
    page.speak("hello there.")
    page.wait(lambda: page.state == "done", SPEECH_S)
    content = page.driver.execute_async_script(
        """
        const done = arguments[arguments.length - 1];
        fetch(document.getElementById("vox-audio").src).then((answer) => answer.arrayBuffer())
          .then((buffer) => done(Array.from(new Uint8Array(buffer))));
        """
    )
    samples, rate_hz = sf.read(io.BytesIO(bytes(content)))
    blocks = page.played()
    assert rate_hz == blocks[0]["rate"]
    assert len(samples) / rate_hz == pytest.approx(sum(b["duration"] for b in blocks), abs=0.001)
    assert np.abs(samples).max() == pytest.approx(max(b["peak"] for b in blocks), abs=0.2)
    page.wait(lambda: page.find("#vox-audio").get_property("duration") > 0)


def test_stop_ends_the_speech_and_its_request(page: Page, speech_server: Server) -> None:
    aborts = speech_server.metric("voxnative_requests_total", outcome="aborted")
    page.speak(SENTENCE)
    page.wait(lambda: page.state == "speaking", SPEECH_S)
    page.click("#vox-stop")
    page.wait(lambda: page.state == "stopped")
    page.wait(
        lambda: speech_server.metric("voxnative_requests_total", outcome="aborted") == aborts + 1
    )


def test_a_refusal_is_shown(page: Page) -> None:
    page.speak(" ")
    page.wait(lambda: page.state == "failed")
    assert "field 'input'" in page.text("vox-status")
    page.speak("hello again.")  # and the page goes on
    page.wait(lambda: page.state == "done", SPEECH_S)


def test_a_voice_is_uploaded_and_used(page: Page, speech_server: Server, tmp_path: Path) -> None:
    t = np.arange(32_000) / 16_000
    path = tmp_path / "voice.wav"
    sf.write(path, 0.2 * np.sin(2 * np.pi * 150 * t) * (1 + np.sin(2 * np.pi * 3 * t)), 16_000)
    name = "from the page"

    page.find("#vox-recording input[type=file]").send_keys(str(path))
    page.wait(
        lambda: page.find(
            "#vox-recording audio, #vox-recording #waveform, #vox-recording .waveform-container"
        )
    )
    page.type("#vox-name input, #vox-name textarea", name)
    page.click("#vox-add")  # without consent
    page.wait(lambda: "consent" in page.find("body").text)
    assert name not in voice_names(speech_server)

    page.click("#vox-agreed input")
    page.click("#vox-add")
    page.wait(lambda: f"Added {name}" in page.text("vox-added"))
    assert name in voice_names(speech_server)
    assert page.find("#vox-voice input").get_attribute("value") == name

    page.speak("hello in this voice.")
    page.wait(lambda: page.state == "done", SPEECH_S)
    httpx.delete(f"{speech_server.address}/v1/audio/voices/{name}").raise_for_status()


def voice_names(server: Server) -> list[str]:
    entries = httpx.get(f"{server.address}/v1/audio/voices").json()["data"]
    return [entry["name"] for entry in entries]


def test_the_page_asks_nobody_else(page: Page) -> None:
    """Neither fonts nor scripts nor statistics come from or go to another host."""
    addresses = page.driver.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    own = page.driver.current_url
    assert len(addresses) > 5
    assert [a for a in addresses if not a.startswith((own, "data:", "blob:"))] == []
    errors = [entry for entry in page.driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == [], json.dumps(errors)[:2000]
