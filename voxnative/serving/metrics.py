"""Prometheus metrics of speech, in the registry that vLLM's ``/metrics`` shows."""

from __future__ import annotations

import time

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_TTFA_BUCKETS_S = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30)
_RTF_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 4)
# stop: the model; length: a cap; silence: it had run out.
FINISH_REASONS = ("stop", "length", "silence")
OUTCOMES = ("finished", "aborted", "timeout", "failed", "refused")


class SpeechMetrics:
    """All metrics of one server process.

    Args:
        registry: where they are registered; vLLM's when left out.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def named(kind: type, name: str, text: str, **options: object):  # type: ignore[no-untyped-def]
            return kind(f"voxnative_{name}", text, registry=registry, **options)

        self.ttfa_s = named(
            Histogram,
            "time_to_first_audio_seconds",
            "From a request's arrival to its first samples, the queue included.",
            buckets=_TTFA_BUCKETS_S,
        )
        self.rtf = named(
            Histogram,
            "real_time_factor",
            "Seconds in the engine a second of audio, of finished requests.",
            buckets=_RTF_BUCKETS,
        )
        self.queue_s = named(
            Histogram,
            "queue_seconds",
            "From a request's arrival to its slot of the engine.",
            buckets=_TTFA_BUCKETS_S,
        )
        self.audio_s = named(Counter, "audio_seconds", "Audio made.")
        self.underruns = named(
            Counter,
            "underruns",
            "Chunks that came after a player had run out of the audio before them.",
        )
        self.aborts = named(Counter, "aborts", "Requests whose client went away.")
        self.requests = named(Counter, "requests", "Requests by outcome.", labelnames=["outcome"])
        self.finish_reasons = named(
            Counter,
            "finish_reasons",
            "Finished requests by what ended their speech.",
            labelnames=["reason"],
        )
        for reason in FINISH_REASONS:
            self.finish_reasons.labels(reason)
        for outcome in OUTCOMES:
            self.requests.labels(outcome)
        self.replicas = named(
            Gauge, "replicas", "Data-parallel replicas of the engine.", labelnames=["state"]
        )
        modes = {"multiprocess_mode": "livesum"}
        self.running = named(Gauge, "requests_running", "Requests in the engine.", **modes)
        self.waiting = named(Gauge, "requests_waiting", "Requests in the queue.", **modes)


class RequestClock:
    """Times of one request, told to the metrics as they are known.

    A player that starts with the first chunk runs dry when a later one comes after everything
    before it has been played: an underrun, from which it is taken to go on with that chunk.
    """

    def __init__(self, metrics: SpeechMetrics) -> None:
        self._metrics = metrics
        self._arrived = time.perf_counter()
        self._admitted = self._arrived
        self._place = metrics.waiting
        self._dry_at: float | None = None
        self._audio_s = 0.0

    def queued(self) -> None:
        """The request waits for its slot."""
        self._place.inc()

    def admitted(self) -> None:
        """The request has its slot."""
        self._place.dec()
        self._place = self._metrics.running
        self._place.inc()
        self._admitted = time.perf_counter()
        self._metrics.queue_s.observe(self._admitted - self._arrived)

    def made(self, chunk_s: float) -> None:
        """A chunk of so many seconds came from the engine."""
        now = time.perf_counter()
        if self._dry_at is None:
            self._metrics.ttfa_s.observe(now - self._arrived)
            self._dry_at = now
        elif now > self._dry_at:
            self._metrics.underruns.inc()
            self._dry_at = now
        self._dry_at += chunk_s
        self._audio_s += chunk_s
        self._metrics.audio_s.inc(chunk_s)

    def ended(self, outcome: str, finish_reason: str | None = None) -> None:
        """The request is over; see `OUTCOMES` and, for a finished one, `FINISH_REASONS`."""
        self._place.dec()
        self._metrics.requests.labels(outcome).inc()
        if outcome == "aborted":
            self._metrics.aborts.inc()
        elif outcome == "finished":
            self._metrics.finish_reasons.labels(finish_reason).inc()
            self._metrics.rtf.observe((time.perf_counter() - self._admitted) / self._audio_s)
