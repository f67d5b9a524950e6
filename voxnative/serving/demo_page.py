"""The demo page: a Gradio interface, and the two calls to the server that it needs.

The page asks this application for speech and this application asks the server, so that the
server's key stays here and no cross-origin rules are in the way. Playing and measuring happen in
the browser (``demo_player.js``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gradio as gr
import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

PLAYER = Path(__file__).with_name("demo_player.js")
EXAMPLES = (
    "the quick brown fox jumps over the lazy dog.",
    "good morning. what would you like to hear today?",
)
_TIMEOUT = httpx.Timeout(10.0, read=300.0)
_SPEECH_VIEW = """
<canvas id="vox-waveform" width="900" height="120" style="width:100%;height:120px"></canvas>
<p><span id="vox-status" data-state="idle">ready</span></p>
<p>First audio <b id="vox-ttfa">–</b> · RTF <b id="vox-rtf">–</b> ·
length <b id="vox-length">–</b></p>
<audio id="vox-audio" controls style="width:100%"></audio>
"""


def build_app(server_url: str, api_key: str | None = None) -> FastAPI:
    """The page as an application.

    Args:
        server_url: where ``voxnative serve`` answers, without a slash at the end.
        api_key: the server's key, if it asks for one.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    server = httpx.AsyncClient(base_url=server_url, headers=headers, timeout=_TIMEOUT)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.post("/speech")
    async def speech(request: Request) -> Response:
        """Pass a request on and its audio back, piece by piece; a lost page ends it."""
        asked = await request.json()
        body = {"input": asked["input"], "response_format": "pcm", "stream": True}
        if asked.get("voice"):
            body["voice"] = asked["voice"]
        outgoing = server.build_request("POST", "/v1/audio/speech", json=body)
        answer = await server.send(outgoing, stream=True)
        if answer.is_error:
            content = await answer.aread()
            return Response(content, answer.status_code, media_type="application/json")
        rate = answer.headers["X-Audio-Sample-Rate"]
        return StreamingResponse(
            _pieces(answer), media_type="audio/pcm", headers={"X-Audio-Sample-Rate": rate}
        )

    # Fonts by name: Gradio's own themes would load theirs from the network.
    theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"])
    head = f"<script>{PLAYER.read_text()}</script>"
    return gr.mount_gradio_app(
        app, _page(server), path="/", theme=theme, head=head, ssr_mode=False, footer_links=[]
    )


async def _pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()


def _page(server: httpx.AsyncClient) -> gr.Blocks:
    async def voices(selected: str | None = None) -> Any:
        answer = await server.get("/v1/audio/voices")
        answer.raise_for_status()
        names = [entry["name"] for entry in answer.json()["data"]]
        return gr.Dropdown(choices=names, value=selected or names[0])

    async def add_voice(recording: str | None, name: str, agreed: bool) -> tuple[Any, str]:
        if recording is None:
            raise gr.Error("Choose or record a voice first.")
        content = Path(recording).read_bytes()
        form = {"name": name, "consent": "stated on the demo page" if agreed else ""}
        answer = await server.post(
            "/v1/audio/voices", data=form, files={"audio_sample": ("voice", content)}
        )
        if answer.is_error:
            raise gr.Error(answer.json()["error"]["message"])
        voice = answer.json()
        return await voices(voice["name"]), f"Added {voice['name']}, {voice['duration_s']:.1f} s."

    with gr.Blocks(title="voxnative", analytics_enabled=False) as page:
        gr.Markdown("# voxnative\nType, listen while it is being spoken, try another voice.")
        with gr.Row():
            with gr.Column(scale=2):
                text = gr.Textbox(EXAMPLES[0], label="Text", lines=4, elem_id="vox-text")
                voice = gr.Dropdown([], label="Voice", elem_id="vox-voice")
                with gr.Row():
                    speak = gr.Button("Speak", variant="primary", elem_id="vox-speak")
                    stop = gr.Button("Stop", elem_id="vox-stop")
                gr.HTML(_SPEECH_VIEW)
                gr.Examples([[example] for example in EXAMPLES], [text])
            with gr.Column(scale=1):
                recording = gr.Audio(
                    label="A voice, 1 to 30 seconds", type="filepath", elem_id="vox-recording"
                )
                name = gr.Textbox(label="Its name", elem_id="vox-name")
                agreed = gr.Checkbox(label="The speaker agreed", elem_id="vox-agreed")
                add = gr.Button("Add voice", elem_id="vox-add")
                added = gr.Markdown(elem_id="vox-added")
        page.load(voices, outputs=voice)
        speak.click(None, [text, voice], js="(text, voice) => window.voxnative.speak(text, voice)")
        stop.click(None, js="() => window.voxnative.stop()")
        add.click(add_voice, [recording, name, agreed], [voice, added])
    return page
