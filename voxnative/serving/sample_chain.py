"""The model's samples -> the samples of an answer: tempo, then rate; both carry their state."""

from __future__ import annotations

import av
import numpy as np
import soxr

SPEED_RANGE = (0.25, 4.0)
_SLOWEST_STAGE = 0.5  # ffmpeg's atempo takes 0.5 and more
_TAIL_S = 0.2  # more than what atempo keeps to itself at the end


class Tempo:
    """Change the speed without the pitch, with FFmpeg's ``atempo``.

    Args:
        speed: 2 is twice as fast; within `SPEED_RANGE`.
        sample_rate_hz: rate of the samples, in and out.
    """

    def __init__(self, speed: float, sample_rate_hz: int) -> None:
        self._rate_hz = sample_rate_hz
        self._speed = speed
        self._n_fed = 0
        self._n_given = 0
        graph = av.filter.Graph()
        stages = [
            graph.add_abuffer(sample_rate=sample_rate_hz, format="fltp", layout="mono"),
            *(graph.add("atempo", f"{stage:g}") for stage in _stages(speed)),
            graph.add("aformat", "sample_fmts=fltp:channel_layouts=mono"),
            graph.add("abuffersink"),
        ]
        graph.link_nodes(*stages).configure()
        self._graph = graph

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """New samples [n] float32 -> those that are ready, [m]."""
        if len(samples) == 0:
            return samples
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(samples, np.float32)[None], format="fltp", layout="mono"
        )
        frame.sample_rate = self._rate_hz
        frame.pts = self._n_fed
        self._n_fed += len(samples)
        self._graph.push(frame)
        return self._pull()

    def finish(self) -> np.ndarray:
        """The samples that are left: the whole is as long as the speed says.

        atempo drops what does not fill its last window, so silence is sent behind the samples and
        what it becomes is cut off.
        """
        n_left = round(self._n_fed / self._speed) - self._n_given
        tail = self.feed(np.zeros(round(_TAIL_S * self._rate_hz), np.float32))
        self._graph.push(None)
        return np.concatenate([tail, self._pull()])[: max(n_left, 0)]

    def _pull(self) -> np.ndarray:
        parts = [np.zeros(0, np.float32)]
        while True:
            try:
                parts.append(self._graph.pull().to_ndarray()[0])
            except (av.BlockingIOError, av.EOFError):
                samples = np.concatenate(parts)
                self._n_given += len(samples)
                return samples


def _stages(speed: float) -> list[float]:
    return [_SLOWEST_STAGE, speed / _SLOWEST_STAGE] if speed < _SLOWEST_STAGE else [speed]


class Resampler:
    """Change the rate with one continuous soxr stream."""

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self._stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32")

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """New samples [n] float32 -> those that are ready, [m]."""
        return self._stream.resample_chunk(samples)

    def finish(self) -> np.ndarray:
        """The samples that are left."""
        return self._stream.resample_chunk(np.zeros(0, np.float32), last=True)


class SampleChain:
    """Tempo and rate of one answer; what changes nothing is left out.

    Args:
        model_hz: rate of the samples that come.
        answer_hz: rate of the samples that go.
        speed: within `SPEED_RANGE`.
    """

    def __init__(self, model_hz: int, answer_hz: int, speed: float) -> None:
        self._stages: list[Tempo | Resampler] = []
        if speed != 1.0:
            self._stages.append(Tempo(speed, model_hz))
        if answer_hz != model_hz:
            self._stages.append(Resampler(model_hz, answer_hz))

    @property
    def is_empty(self) -> bool:
        """Whether samples pass unchanged."""
        return not self._stages

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """New samples [n] float32 -> those that are ready, [m]."""
        for stage in self._stages:
            samples = stage.feed(samples)
        return samples

    def finish(self) -> np.ndarray:
        """The samples that are left; each stage's rest goes through the stages behind it."""
        rest = np.zeros(0, np.float32)
        for stage in self._stages:
            rest = np.concatenate([stage.feed(rest), stage.finish()])
        return rest
