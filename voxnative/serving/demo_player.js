// The demo page's player: fetches speech, plays what has arrived, draws it, and measures.
//
// Times are the listener's: the first audio counts when its samples have reached this page.

(() => {
  const byId = (id) => document.getElementById(id);
  let running = null; // the AbortController and the AudioContext of the speech that plays now

  // 16-bit little-endian samples that may be cut in the middle by a network piece.
  function sampleReader() {
    let rest = new Uint8Array(0);
    return (piece) => {
      const bytes = new Uint8Array(rest.length + piece.length);
      bytes.set(rest);
      bytes.set(piece, rest.length);
      const n = bytes.length >> 1;
      rest = bytes.slice(2 * n);
      const view = new DataView(bytes.buffer);
      return Float32Array.from({ length: n }, (_, i) => view.getInt16(2 * i, true) / 32768);
    };
  }

  function draw(samples) {
    const canvas = byId("vox-waveform");
    const pen = canvas.getContext("2d");
    const { width, height } = canvas;
    const column = Math.max(1, Math.ceil(samples.length / width));
    pen.clearRect(0, 0, width, height);
    pen.fillStyle = "#3b82f6";
    for (let x = 0; x * column < samples.length; x++) {
      let peak = 0.005;
      for (const sample of samples.subarray(x * column, (x + 1) * column)) {
        peak = Math.max(peak, Math.abs(sample));
      }
      pen.fillRect(x, (height / 2) * (1 - peak), 1, height * peak);
    }
  }

  function wav(samples, rate) {
    const bytes = new DataView(new ArrayBuffer(44 + 2 * samples.length));
    const text = (at, value) => [...value].forEach((c, i) => bytes.setUint8(at + i, c.charCodeAt(0)));
    text(0, "RIFF");
    bytes.setUint32(4, 36 + 2 * samples.length, true);
    text(8, "WAVEfmt ");
    bytes.setUint32(16, 16, true); // length of the format chunk
    bytes.setUint16(20, 1, true); // PCM
    bytes.setUint16(22, 1, true); // mono
    bytes.setUint32(24, rate, true);
    bytes.setUint32(28, 2 * rate, true);
    bytes.setUint16(32, 2, true);
    bytes.setUint16(34, 16, true);
    text(36, "data");
    bytes.setUint32(40, 2 * samples.length, true);
    samples.forEach((s, i) => bytes.setInt16(44 + 2 * i, Math.round(s * 32767), true));
    return new Blob([bytes.buffer], { type: "audio/wav" });
  }

  // Plays blocks of samples one behind the other, without gaps while they come in time.
  function player(context, rate) {
    let next = 0;
    return (samples) => {
      const buffer = context.createBuffer(1, samples.length, rate);
      buffer.copyToChannel(samples, 0);
      const source = context.createBufferSource();
      source.buffer = buffer;
      source.connect(context.destination);
      next = Math.max(next, context.currentTime + 0.02);
      source.start(next);
      next += buffer.duration;
    };
  }

  function show(state, message, numbers = {}) {
    const status = byId("vox-status");
    status.dataset.state = state;
    status.textContent = message;
    for (const id of ["ttfa", "rtf", "length"]) {
      byId(`vox-${id}`).textContent = numbers[id] ?? "–";
    }
  }

  function stop() {
    if (running !== null) {
      running.abort.abort();
      running.context.close();
      running = null;
    }
  }

  async function speak(text, voice) {
    stop();
    const abort = new AbortController();
    const context = new AudioContext(); // inside the click, or the browser keeps it silent
    running = { abort, context };
    byId("vox-audio").removeAttribute("src");
    show("waiting", "waiting for the first audio");
    const started = performance.now();
    try {
      const answer = await fetch("speech", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ input: text, voice: voice || null }),
        signal: abort.signal,
      });
      if (!answer.ok) {
        const { error } = await answer.json();
        throw new Error(error.message);
      }
      await hear(answer, context, started);
    } catch (error) {
      const stopped = error.name === "AbortError";
      show(stopped ? "stopped" : "failed", stopped ? "stopped" : error.message);
    }
  }

  async function hear(answer, context, started) {
    const rate = Number(answer.headers.get("X-Audio-Sample-Rate"));
    const read = sampleReader();
    const play = player(context, rate);
    let all = new Float32Array(0);
    const numbers = {};
    for (const reader = answer.body.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      const samples = read(value);
      if (samples.length === 0) continue;
      const elapsed = (performance.now() - started) / 1000;
      numbers.ttfa ??= `${Math.round(elapsed * 1000)} ms`;
      play(samples);
      const joined = new Float32Array(all.length + samples.length);
      joined.set(all);
      joined.set(samples, all.length);
      all = joined;
      numbers.rtf = (elapsed / (all.length / rate)).toFixed(2);
      numbers.length = `${(all.length / rate).toFixed(2)} s`;
      draw(all);
      show("speaking", "speaking", numbers);
    }
    byId("vox-audio").src = URL.createObjectURL(wav(all, rate));
    show("done", `done, at ${rate} Hz`, numbers);
  }

  window.voxnative = { speak, stop };
})();
