// Speech in a browser, or in Node 18 and later, with nothing but fetch.
//
//   import { speech, play } from "./speech_fetch.mjs";
//   button.onclick = () => play("Hello there.");          // heard while it is being spoken
//
//   for await (const { samples, rate } of speech("Hello there.")) { ... }
//
// A server lets no page of another origin in unless it is told to:
//   voxnative serve --allowed-origins '["http://localhost:3000"]'

// Yields { samples: Float32Array, rate } as they arrive. `options` are further fields of the
// request, such as { voice: "nova", seed: 7 }.
export async function* speech(text, options = {}, server = "http://localhost:8000") {
  const answer = await fetch(`${server}/v1/audio/speech`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ input: text, response_format: "pcm", stream: true, ...options }),
  });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  // A page of another origin may read this header and no X-Audio-Sample-Rate.
  const rate = Number(answer.headers.get("Content-Type").match(/rate=(\d+)/)[1]);
  let rest = new Uint8Array(0);
  for (const reader = answer.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    const bytes = new Uint8Array([...rest, ...value]); // a piece may end inside a sample
    const n = bytes.length >> 1;
    const view = new DataView(bytes.buffer);
    const samples = Float32Array.from({ length: n }, (_, i) => view.getInt16(2 * i, true) / 32768);
    rest = bytes.slice(2 * n);
    if (n > 0) yield { samples, rate };
  }
}

// Plays the speech as it arrives; call it from a click, or the browser keeps it silent.
export async function play(text, options, server) {
  const context = new AudioContext();
  let next = 0;
  for await (const { samples, rate } of speech(text, options, server)) {
    const buffer = context.createBuffer(1, samples.length, rate);
    buffer.copyToChannel(samples, 0);
    const source = new AudioBufferSourceNode(context, { buffer });
    source.connect(context.destination);
    next = Math.max(next, context.currentTime + 0.02);
    source.start(next);
    next += buffer.duration;
  }
}
