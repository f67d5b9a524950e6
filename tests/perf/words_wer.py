"""Word error rates of the audio that `gpu_report tiny` wrote, at each concurrency.

    python -m tests.perf.words_wer DIR        # reads DIR/words_*.npz, writes DIR/wer.json

Transcribed on the CPU by whisper (`voxnative.bench.recognise`); needs no GPU and no engine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.perf.tiny_engine import SENTENCES
from voxnative.bench.recognise import Recogniser, word_error_rate


def wer_of(file: Path, recogniser: Recogniser, rate_hz: int, n_at_most: int) -> dict[str, Any]:
    """Word error rate of one file; its clips go through the sentences in order.

    Args:
        file: ``words_NNN.npz``, clips by number.
        recogniser: loaded once for all files.
        rate_hz: of the clips.
        n_at_most: clips that are transcribed, spread evenly over the file.
    """
    with np.load(file) as clips:
        names = sorted(clips.files)
        chosen = np.linspace(0, len(names) - 1, min(n_at_most, len(names))).astype(int)
        scores = [
            recogniser.score(
                SENTENCES[int(names[i]) % len(SENTENCES)],
                clips[names[i]].astype(np.float32) / 32767,
                rate_hz,
            )
            for i in chosen
        ]
    worst = max(scores, key=lambda score: score.n_errors)
    return {
        "clips": len(scores),
        "of": len(names),
        "word_error_rate_percent": round(word_error_rate(scores), 2),
        "clips_with_errors": sum(score.n_errors > 0 for score in scores),
        "worst": worst.hypothesis,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rate-hz", type=int, default=16_000, help="of the shipped checkpoint")
    parser.add_argument("--clips", type=int, default=64, help="of each file, at most")
    arguments = parser.parse_args()
    files = sorted(arguments.folder.glob("words_*.npz"))
    if not files:
        parser.error(f"{arguments.folder} holds no words_*.npz: run gpu_report tiny first")
    recogniser = Recogniser()
    rates = {}
    for file in files:
        n_streams = int(file.stem.removeprefix("words_"))
        rates[n_streams] = wer_of(file, recogniser, arguments.rate_hz, arguments.clips)
        print(n_streams, rates[n_streams], flush=True)
    (arguments.folder / "wer.json").write_text(json.dumps(rates, indent=1))


if __name__ == "__main__":
    main()
