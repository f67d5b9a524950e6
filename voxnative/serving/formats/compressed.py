"""MP3, Opus, AAC and FLAC: one continuous FFmpeg encoder and muxer for the whole answer.

FFmpeg is told to write each packet as it comes. MP3 and ADTS have no place that says how many
samples of encoder delay to skip, so the packets that hold nothing but the delay are left out, and
a few milliseconds of silence are put in front, over which the first real packet fades in. The
result is at most one codec frame longer than the speech. Ogg and FLAC carry exact lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import av
import numpy as np

from voxnative.serving.formats.base import to_int16


@dataclass(frozen=True)
class Codec:
    """How FFmpeg makes one format.

    Attributes:
        container: muxer.
        codec: encoder.
        sample_format: what the encoder takes: "fltp", "flt" or "s16".
        bit_rate: bits a second; None where the codec is lossless.
        codec_options: options of the encoder.
        container_options: options of the muxer.
        delay_samples: samples that the encoder adds in front and the format cannot announce.
        frame_samples: samples of a packet at 32 kHz and above, and below.
        lead_s: silence in front of the speech, where there is such a delay.
        header_holds_length: the muxer goes back to write the length into its header.
    """

    container: str
    codec: str
    sample_format: str
    bit_rate: int | None = None
    codec_options: dict[str, str] = field(default_factory=dict)
    container_options: dict[str, str] = field(default_factory=dict)
    delay_samples: int = 0
    frame_samples: tuple[int, int] = (1, 1)
    lead_s: float = 0.0
    header_holds_length: bool = False

    def priming(self, sample_rate_hz: int) -> tuple[int, int]:
        """Packets to leave out at the start, and samples of silence to put in front."""
        if not self.delay_samples:
            return 0, 0
        frame = self.frame_samples[0 if sample_rate_hz >= 32_000 else 1]
        n_dropped = -(-self.delay_samples // frame)
        n_completing = n_dropped * frame - self.delay_samples
        return n_dropped, n_completing + round(self.lead_s * sample_rate_hz)


# Without the bit reservoir a packet needs no earlier one. The delay is LAME's 576 samples and the
# 529 of every decoder.
MP3 = Codec(
    "mp3",
    "libmp3lame",
    "fltp",
    bit_rate=128_000,
    codec_options={"reservoir": "0"},
    container_options={"write_xing": "0", "id3v2_version": "0"},
    delay_samples=576 + 529,
    frame_samples=(1152, 576),
    lead_s=0.003,
)
AAC = Codec(
    "adts",
    "aac",
    "fltp",
    bit_rate=128_000,
    delay_samples=1024,
    frame_samples=(1024, 1024),
    lead_s=0.006,
)
OPUS = Codec(
    "ogg",
    "libopus",
    "flt",
    bit_rate=64_000,
    container_options={"page_duration": "20000"},
)
FLAC = Codec("flac", "flac", "s16", header_holds_length=True)


class _Forward:
    """What FFmpeg writes to; `take` hands on what has come since."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken


class _Rewritable:
    """A file in memory that is handed on only when it is complete."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0

    def write(self, data: bytes) -> int:
        self._data[self._at : self._at + len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._data))[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def take(self) -> bytes:
        return b""

    def take_all(self) -> bytes:
        return bytes(self._data)


class CompressedEncoder:
    """See `StreamEncoder`.

    Args:
        codec: how the format is made.
        sample_rate_hz: rate of the samples and of the stream.
        whole: the bytes may come all at the end, with the length in the header.
    """

    def __init__(self, codec: Codec, sample_rate_hz: int, whole: bool) -> None:
        self._codec = codec
        self._rate_hz = sample_rate_hz
        holds = whole and codec.header_holds_length
        self._sink: _Forward | _Rewritable = _Rewritable() if holds else _Forward()
        # "bitexact" leaves out FFmpeg's version and makes Ogg's serial number constant.
        options = {"fflags": "+flush_packets+bitexact", **codec.container_options}
        self._container = av.open(self._sink, "w", format=codec.container, options=options)
        self._stream = self._container.add_stream(
            codec.codec, rate=sample_rate_hz, layout="mono", options=dict(codec.codec_options)
        )
        if codec.bit_rate is not None:
            self._stream.bit_rate = codec.bit_rate
        self._stream.codec_context.format = codec.sample_format
        self._n_fed = 0
        self._n_to_drop, self._n_lead = codec.priming(sample_rate_hz)

    def start(self) -> bytes:
        return self.feed(np.zeros(self._n_lead, np.float32))

    def feed(self, samples: np.ndarray) -> bytes:
        if len(samples):
            is_float = self._codec.sample_format.startswith("flt")
            packed = samples.astype(np.float32) if is_float else to_int16(samples)
            frame = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(packed)[None], format=self._codec.sample_format, layout="mono"
            )
            frame.sample_rate = self._rate_hz
            frame.pts = self._n_fed
            self._n_fed += len(samples)
            self._encode(frame)
        return self._sink.take()

    def finish(self) -> bytes:
        self._encode(None)
        self._container.close()
        return self._sink.take_all() if isinstance(self._sink, _Rewritable) else self._sink.take()

    def _encode(self, frame: av.AudioFrame | None) -> None:
        for packet in self._stream.encode(frame):
            if self._n_to_drop:
                self._n_to_drop -= 1
            else:
                self._container.mux(packet)
