"""What the shipped checkpoint does on an engine: requests of all kinds, and its audio."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from voxnative.async_api import AsyncVoxNative
from voxnative.result import SpeechResult

SENTENCES = (
    "the morning train was late again.",
    "we walked along the river into town.",
    "please open the window a little.",
    "the long winter is over at last.",
)
CFG = 3.0


async def behaviour(speech: AsyncVoxNative) -> dict[str, Any]:
    """Alone and in a batch, other numbers of timesteps, references, an early end.

    Raises:
        AssertionError: a request was another in a batch than alone, or left state behind.
    """

    async def speak(index: int, **arguments: Any) -> SpeechResult:
        return await speech.synthesize(SENTENCES[index % 4], seed=index, cfg=CFG, **arguments)

    report: dict[str, Any] = {}
    alone = [await speak(i) for i in range(3)]
    together = await asyncio.gather(*(speak(i) for i in range(12)))
    report["alone_and_together"] = [_compared(a, b) for a, b in zip(alone, together, strict=False)]
    odd = await asyncio.gather(*(speak(i, timesteps=4 + i) for i in range(3)))
    report["patches_of_4_5_6_timesteps"] = [r.n_patches for r in odd]
    voice = alone[0].samples, speech.sample_rate_hz
    first, again = [await speak(1, reference=voice) for _ in range(2)]  # the second finds KV blocks
    report["reference_and_again"] = _compared(first, again)
    prompted = await speak(2, prompt=voice, prompt_text=SENTENCES[0])
    report["continuation_patches"] = prompted.n_patches
    async for _ in speech.stream(SENTENCES[0], seed=99, cfg=CFG, max_steps=60, min_steps=59):
        break  # closing the stream aborts the request
    await speak(0)
    left = await speech._engine.collective_rpc("speech_requests")  # of each rank
    report["left_over"] = left
    report["ttfa_s"], report["rtf"] = alone[2].ttfa_s, alone[2].rtf
    pairs = [pair["patches"] for pair in report["alone_and_together"]]
    report["lengths_within_a_patch"] = all(abs(a - b) <= 1 for a, b in pairs)
    print(report, flush=True)
    assert not any(left), left
    assert report["lengths_within_a_patch"], pairs
    return report


def _compared(a: SpeechResult, b: SpeechResult) -> dict[str, Any]:
    n = min(len(a.samples), len(b.samples))
    difference = a.samples[:n] - b.samples[:n]
    return {
        "patches": [a.n_patches, b.n_patches],
        "max_difference": float(np.abs(difference).max()),
        "rms_difference": float(np.sqrt(np.mean(difference**2))),
        "rms": float(np.sqrt(np.mean(a.samples**2))),
    }


async def speak_words(
    speech: AsyncVoxNative, concurrencies: list[int], folder: Path
) -> dict[str, Any]:
    """Sentences at each concurrency, to ``folder/words_NNN.npz`` as 16-bit PCM."""
    lengths: dict[str, list[int]] = {}

    async def speak(index: int, gate: asyncio.Semaphore) -> SpeechResult:
        n = len(SENTENCES)
        async with gate:
            return await speech.synthesize(SENTENCES[index % n], seed=index // n, cfg=CFG)

    for n_streams in concurrencies:
        n_calls = max(n_streams, 4 * len(SENTENCES))  # one stream: one after the other
        gate = asyncio.Semaphore(n_streams)
        results = await asyncio.gather(*(speak(i, gate) for i in range(n_calls)))
        lengths[str(n_streams)] = [r.n_patches for r in results]
        pcm = {
            f"{i:03d}": (32767 * r.samples.clip(-1, 1)).astype(np.int16)
            for i, r in enumerate(results)
        }
        np.savez_compressed(folder / f"words_{n_streams:03d}.npz", **pcm)
        print("words", n_streams, "streams", sum(lengths[str(n_streams)]), "patches", flush=True)
    return {"patches": lengths, "sentences": SENTENCES, "rate_hz": speech.sample_rate_hz}
