"""Whether the speech of a run is speech: words, voice and naturalness, with intervals."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from voxnative.bench import bootstrap
from voxnative.bench.errors import BenchError
from voxnative.bench.naturalness import Dnsmos
from voxnative.bench.recognise import Recogniser, WordErrors
from voxnative.bench.record import RequestRecord
from voxnative.bench.similarity import SpeakerEncoder

Progress = Callable[[Iterable[RequestRecord]], Iterable[RequestRecord]]


class QualityJudge:
    """Holds the three models; they are loaded once for a whole matrix.

    Raises:
        MissingExtraError: a package of the extra `bench` is not installed.
    """

    def __init__(self) -> None:
        self._recogniser = Recogniser(n_threads=len(os.sched_getaffinity(0)))
        self._speaker = SpeakerEncoder()
        self._dnsmos = Dnsmos()

    def score(
        self, records: Sequence[RequestRecord], locale: str, progress: Progress
    ) -> dict[str, Any]:
        """Figures of the answers of a run, under the names that `definitions.py` explains.

        Args:
            records: of answered requests; none leaves only the count.
            locale: of the texts.
            progress: wraps the records while they are gone through.

        Raises:
            BenchError: the recogniser does not know the language.
        """
        if locale != "en":
            raise BenchError(
                f"quality: seed_tts_locale {locale} is not valid: whisper tiny.en hears English;"
                " --no-quality reports without"
            )
        errors: list[WordErrors] = []
        likeness: list[float] = []
        opinions: list[float] = []
        for record in progress(records):
            task, samples, rate_hz = record.task, record.samples, record.rate_hz
            errors.append(self._recogniser.score(task.text, samples, rate_hz))
            opinions.append(self._dnsmos.overall(samples, rate_hz))
            if task.reference is not None:
                likeness.append(self._speaker.similarity(samples, rate_hz, task.reference))
        found: dict[str, Any] = {"n_scored": len(errors)}
        if errors:
            n_words = [float(e.n_words) for e in errors]
            found["wer_percent"] = bootstrap.ratio([100.0 * e.n_errors for e in errors], n_words)
            found["dnsmos_ovrl"] = bootstrap.mean(opinions)
        if likeness:
            found["speaker_similarity"] = bootstrap.mean(likeness)
        return {
            name: asdict(value) if isinstance(value, bootstrap.Estimate) else value
            for name, value in found.items()
        } | {"misheard": _misheard(records, errors)}


def _misheard(
    records: Sequence[RequestRecord], errors: Sequence[WordErrors]
) -> list[dict[str, str]]:
    """Texts that were not heard as written; the data set's own, so that they may be shown."""
    return [
        {"text": record.task.text, "heard": e.hypothesis}
        for record, e in zip(records, errors, strict=True)
        if e.n_errors
    ]
