"""What a request's clock tells Prometheus."""

from __future__ import annotations

import time

import pytest
from prometheus_client import CollectorRegistry

from tests.unit.serving.scripted import Scripted
from voxnative.serving.metrics import OUTCOMES, RequestClock, SpeechMetrics


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> SpeechMetrics:
    return SpeechMetrics(registry)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"voxnative_{name}", labels)


def test_a_request_that_is_made_in_time(
    registry: CollectorRegistry, metrics: SpeechMetrics
) -> None:
    clock = RequestClock(metrics)
    clock.queued()
    assert value(registry, "requests_waiting") == 1
    clock.admitted()
    assert value(registry, "requests_waiting") == 0
    assert value(registry, "requests_running") == 1
    for _ in range(3):
        clock.made(0.16)
    clock.ended("finished", "length")
    assert value(registry, "finish_reasons_total", reason="length") == 1
    assert value(registry, "finish_reasons_total", reason="stop") == 0
    assert value(registry, "requests_running") == 0
    assert value(registry, "audio_seconds_total") == pytest.approx(0.48)
    assert value(registry, "underruns_total") == 0
    assert value(registry, "time_to_first_audio_seconds_count") == 1
    assert value(registry, "queue_seconds_count") == 1
    assert value(registry, "real_time_factor_count") == 1
    assert value(registry, "requests_total", outcome="finished") == 1


def test_late_chunks_are_underruns(registry: CollectorRegistry, metrics: SpeechMetrics) -> None:
    clock = RequestClock(metrics)
    clock.queued()
    clock.admitted()
    clock.made(0.01)
    time.sleep(0.03)
    clock.made(0.2)  # a player ran dry 20 ms ago
    clock.made(0.01)
    clock.ended("finished", "stop")
    assert value(registry, "underruns_total") == 1


def test_a_request_that_goes_away_while_it_waits(
    registry: CollectorRegistry, metrics: SpeechMetrics
) -> None:
    clock = RequestClock(metrics)
    clock.queued()
    clock.ended("aborted")
    assert value(registry, "requests_waiting") == 0
    assert value(registry, "aborts_total") == 1
    assert value(registry, "real_time_factor_count") == 0


def test_all_outcomes_are_there_from_the_start(
    registry: CollectorRegistry, metrics: SpeechMetrics
) -> None:
    assert [value(registry, "requests_total", outcome=name) for name in OUTCOMES] == [0] * 5


def test_a_lost_replica_is_seen_and_takes_its_places_along() -> None:
    scripted = Scripted(max_concurrency=4)
    scripted.server.note_replicas(2, 2)
    assert value(scripted.registry, "replicas", state="alive") == 2
    assert value(scripted.registry, "replicas", state="dead") == 0
    assert scripted.server.admission.max_concurrency == 4
    scripted.server.note_replicas(1, 2)
    assert value(scripted.registry, "replicas", state="alive") == 1
    assert value(scripted.registry, "replicas", state="dead") == 1
    assert scripted.server.admission.max_concurrency == 2
