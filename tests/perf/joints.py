"""Which joint of a long text's pieces suits a checkpoint: words, voice, naturalness, seams.

    python -m tests.perf.joints [--model DIR] [--file TEXT] [--seeds 1 2] [--out FILE.json]

Every joint speaks the same texts with the same seeds. The table goes with the checkpoint's
`long_text_joint`: the joint with the fewest lost words, then the steadiest voice.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoints import TRAINED_TINY
from voxnative.bench import bootstrap
from voxnative.bench.naturalness import Dnsmos
from voxnative.bench.recognise import Recogniser
from voxnative.bench.similarity import SpeakerEncoder
from voxnative.offline import VoxNative
from voxnative.result import SpeechResult
from voxnative.units import JOINTS

PASSAGES = (
    "The old man walked to the river in the morning. He looked at the water for a long time. "
    "Then he came back without a word, and his brother was waiting for him at the small house. "
    "They had some bread and milk. After the rain they went into the garden together.",
    "My sister works at the station, near the market. Every day she sees the same people. "
    "A young woman buys a red apple and reads the paper. The teacher talks about the weather, "
    "and the captain tells a story about the sea. Nobody is in a hurry.",
    "We wanted to paint the kitchen before the summer. The children found a bridge behind the "
    "trees and played there until the evening. When the sun went down, they were tired and happy. "
    "It was one of those days that nobody forgets.",
)
SEAM_WINDOW_S = 0.02


class Judge:
    """Hears a spoken text piece by piece."""

    def __init__(self) -> None:
        self._recogniser = Recogniser(n_threads=len(os.sched_getaffinity(0)))
        self._speaker = SpeakerEncoder()
        self._dnsmos = Dnsmos()

    def score(self, text: str, spoken: SpeechResult) -> list[dict[str, Any]]:
        """One row a piece; the voice is compared with the piece before."""
        rows, before, rate_hz = [], None, spoken.sample_rate_hz
        ends = np.cumsum([round(piece.duration_s * rate_hz) for piece in spoken.pieces])
        for piece, samples in zip(spoken.pieces, np.split(spoken.samples, ends[:-1]), strict=True):
            words = self._recogniser.score(text[piece.start : piece.end], samples, rate_hz)
            voice = self._speaker.embed(samples, rate_hz)
            rows.append(
                {
                    "n_words": words.n_words,
                    "n_errors": words.n_errors,
                    "heard": words.hypothesis,
                    "voice": None if before is None or voice is None else float(before @ voice),
                    "dnsmos": self._dnsmos.overall(samples, rate_hz),
                    "finish_reason": piece.finish_reason,
                    "n_attempts": piece.n_attempts,
                    "is_joined": piece.is_joined,
                    "duration_s": piece.duration_s,
                }
            )
            before = voice
        for row, joint in zip(rows[1:], ends[:-1], strict=True):
            row["seam_step"] = seam_step(spoken.samples, int(joint), rate_hz)
        return rows


def seam_step(samples: np.ndarray, joint: int, rate_hz: int) -> float:
    """Largest step between samples at a joint, over the largest within speech; a click is > 1."""
    steps = np.abs(np.diff(samples))
    n = round(SEAM_WINDOW_S * rate_hz)
    return float(steps[max(0, joint - n) : joint + n].max() / steps.max())


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of one joint, with 95 % intervals where they are means."""
    n_words = [float(row["n_words"]) for row in rows]
    # A recogniser that starts to repeat itself would outweigh every other piece.
    n_errors = [float(min(row["n_errors"], row["n_words"])) for row in rows]
    voices = [row["voice"] for row in rows if row["voice"] is not None]
    return {
        "n_pieces": len(rows),
        "wer_percent": asdict(bootstrap.ratio([100.0 * n for n in n_errors], n_words)),
        "more_errors_than_words": sum(row["n_errors"] > row["n_words"] for row in rows),
        "voice_of_the_piece_before": asdict(bootstrap.mean(voices)),
        "least_like": min(voices),
        "dnsmos": asdict(bootstrap.mean([row["dnsmos"] for row in rows])),
        "largest_seam_step": max(row["seam_step"] for row in rows if "seam_step" in row),
        "not_stopped": sum(row["finish_reason"] != "stop" for row in rows),
        "second_attempts": sum(row["n_attempts"] > 1 for row in rows),
        "joined": sum(row["is_joined"] for row in rows),
        "audio_s": sum(row["duration_s"] for row in rows),
    }


def main() -> None:
    """Speak, hear, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=TRAINED_TINY)
    parser.add_argument("--file", type=Path, action="append", help="texts instead of the own ones")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--joints", nargs="+", default=list(JOINTS), choices=JOINTS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    texts = [path.read_text() for path in args.file] if args.file else list(PASSAGES)
    rows: dict[str, list[dict[str, Any]]] = {joint: [] for joint in args.joints}
    judge = Judge()
    with VoxNative(args.model) as speech:
        for text in texts:
            for seed in args.seeds:
                for joint in args.joints:
                    spoken = speech.synthesize_long(text, joint=joint, seed=seed)
                    rows[joint] += judge.score(text, spoken)
                    print(joint, seed, f"{spoken.duration_s:.1f} s", flush=True)
    figures = {joint: summary(found) for joint, found in rows.items()}
    if args.out:
        args.out.write_text(json.dumps({"figures": figures, "pieces": rows}, indent=1))
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
