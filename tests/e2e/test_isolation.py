"""A request's audio does not depend on what else the engine does: batching, chunked prefill,
preemption, prefix caching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines import Recorded, RecordingEngine
from tests.reference import reference_generate

TOLERANCE = 1e-4
Voice = Callable[[int, float], np.ndarray]


def eight_requests(voice: Voice) -> list[dict[str, Any]]:
    """Every mode, two solver lengths, several guidance weights, temperatures and lengths."""
    low, high = (voice(110, 0.3), 16_000), (voice(190, 0.25), 16_000)
    return [
        {"text": "the first of eight voices", "seed": 1, "max_steps": 40},
        {"text": "a second one speaks", "seed": 2, "cfg": 3.0, "max_steps": 44},
        {"text": "and a third", "seed": 3, "timesteps": 6, "max_steps": 48},
        {"text": "number four", "seed": 4, "reference": low, "max_steps": 40},
        {
            "text": "five has a prompt",
            "seed": 5,
            "prompt": high,
            "prompt_text": "ah ",
            "max_steps": 42,
        },
        {
            "text": "six",
            "seed": 6,
            "reference": low,
            "prompt": high,
            "prompt_text": "oh ",
            "max_steps": 28,
        },
        {"text": "seven is quiet", "seed": 7, "temperature": 0.5, "cfg": 1.0, "max_steps": 40},
        {"text": "the eighth", "seed": 8, "timesteps": 6, "cfg": 4.0, "max_steps": 40},
    ]


@pytest.fixture(scope="module")
def solo(roomy: RecordingEngine, voice: Voice) -> list[Recorded]:
    """Each of the eight requests alone in an engine with room for everything."""
    return [roomy.run(call)[0] for call in eight_requests(voice)]


def assert_same(got: Recorded, expected: Recorded, what: str) -> None:
    assert got.latents.shape == expected.latents.shape, what
    error = (got.latents - expected.latents).abs().max()
    print(f"{what}: latents max {error:.2e} over {len(got.latents)} patches")
    assert error < TOLERANCE, what
    assert got.result.samples.shape == expected.result.samples.shape
    assert got.result.finish_reason == expected.result.finish_reason


def test_alone_twice_is_bit_equal(
    roomy: RecordingEngine, solo: list[Recorded], voice: Voice
) -> None:
    (again,) = roomy.run(eight_requests(voice)[0])
    assert set(again.batch_sizes) == {1}
    assert torch.equal(again.latents, solo[0].latents)
    assert np.array_equal(again.result.samples, solo[0].result.samples)


def test_batch_of_eight_with_staggered_arrivals(
    roomy: RecordingEngine, solo: list[Recorded], voice: Voice
) -> None:
    delays = [0.03 * i for i in range(8)]
    together = roomy.run(*eight_requests(voice), delays_s=delays)
    assert max(max(r.batch_sizes) for r in together) >= 4, "the requests hardly met"
    for i, (got, expected) in enumerate(zip(together, solo, strict=True)):
        assert_same(got, expected, f"request {i + 1} of 8")


def test_chunked_prefill_with_a_border_inside_the_reference(
    cramped: RecordingEngine, solo: list[Recorded], voice: Voice
) -> None:
    (got,) = cramped.run(eight_requests(voice)[3])
    chunks = [n for n in got.scheduled_tokens if n > 1]
    assert chunks[0] == 16  # the reference takes 30 positions
    assert len(chunks) >= 3, chunks
    assert_same(got, solo[3], "reference, chunked")
    (got,) = cramped.run(eight_requests(voice)[4])
    assert_same(got, solo[4], "continuation, chunked")


def test_preempted_requests_resume_on_their_own_audio(
    cramped: RecordingEngine, solo: list[Recorded], voice: Voice
) -> None:
    before = cramped.rpc("counts")["resumed"]
    together = cramped.run(*eight_requests(voice))
    n_resumed = cramped.rpc("counts")["resumed"] - before
    print(f"{n_resumed} preempted requests were resumed")
    assert n_resumed > 0
    for i, (got, expected) in enumerate(zip(together, solo, strict=True)):
        assert_same(got, expected, f"request {i + 1} of 8, preempted")
    assert cramped.rpc("speech_requests") == []


TEXT = "one and the same text, long enough to fill more than one block of the cache"


@pytest.mark.parametrize("together", [True, False], ids=["together", "one after another"])
def test_one_text_with_two_seeds_weights_and_voices(
    together: bool, roomy: RecordingEngine, voice: Voice
) -> None:
    """With the prefix cache on, each request equals the reference implementation's run of it."""
    voices: list[dict[str, Any]] = [
        {},
        {},
        {},
        {"reference": (110, 0.5)},
        {"reference": (190, 0.5)},
    ]
    settings = [
        {"seed": 1, "cfg": 2.0},
        {"seed": 2, "cfg": 2.0},
        {"seed": 1, "cfg": 3.5},
        {"seed": 1, "cfg": 2.0},
        {"seed": 1, "cfg": 2.0},
    ]
    calls, expected = [], []
    for setting, who in zip(settings, voices, strict=True):
        samples = {name: voice(*spec) for name, spec in who.items()}
        call = {"text": TEXT, "max_steps": 40, **setting}
        calls.append(call | {name: (array, 16_000) for name, array in samples.items()})
        expected.append(
            reference_generate(roomy.directory, TEXT, n_steps=40, **setting, **samples).latents
        )
    runs = roomy.run(*calls) if together else [roomy.run(call)[0] for call in calls]
    if not together:
        cached = [run.cached_tokens for run in runs]
        print(f"prompt positions from the prefix cache: {cached}")
        assert cached[1] >= 32, "the second request with a text shares its blocks"
        assert cached[2] >= 32
    for run, latents in zip(runs, expected, strict=True):
        assert (run.latents - latents).abs().max() < TOLERANCE
    assert not torch.allclose(runs[0].latents, runs[1].latents, atol=0.01)
    assert not torch.allclose(runs[3].latents, runs[4].latents, atol=0.01)


def test_a_voice_is_encoded_and_prefilled_once(roomy: RecordingEngine, voice: Voice) -> None:
    recording = (voice(135, 0.66), 16_000)  # 66 patches: two blocks of 32 and a rest
    call = {"seed": 9, "max_steps": 12, "reference": recording}
    before = roomy.rpc("counts")["encoded"]
    (first,) = roomy.run(call | {"text": "the first use of a voice"})
    (second,) = roomy.run(call | {"text": "and its second use"})
    assert roomy.rpc("counts")["encoded"] - before == 1
    assert first.cached_tokens == 0
    assert second.cached_tokens >= 64

    # Same length, other content: nothing is shared.
    other = (voice(220, 0.66), 16_000)
    (third,) = roomy.run(call | {"text": "and its second use", "reference": other})
    assert third.cached_tokens == 0
    assert not torch.allclose(third.latents, second.latents, atol=0.01)


def test_a_continuation_repeats_with_its_prompt_in_the_encoder_cache(
    roomy: RecordingEngine, voice: Voice
) -> None:
    """The first condition is a latent of the prompt, which a cache hit does not encode again."""
    call = {
        "text": "once more from the same prompt",
        "seed": 12,
        "max_steps": 16,
        "prompt": (voice(175, 0.7), 16_000),
        "prompt_text": "the prompt said so ",
    }
    (first,) = roomy.run(call)
    before = roomy.rpc("counts")["encoded"]
    (second,) = roomy.run(call)
    assert roomy.rpc("counts")["encoded"] == before
    assert second.cached_tokens > 0
    assert_same(second, first, "continuation from caches")
