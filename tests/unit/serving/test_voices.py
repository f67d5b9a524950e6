"""Voices: what is uploaded becomes usable, stays, and is keyed by what it holds."""

from __future__ import annotations

import asyncio
import io
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
import torch
from safetensors import safe_open

from tests.checkpoints import TRAINED_TINY, load_speech_nets
from voxnative.config import VoxConfig
from voxnative.errors import AudioFormatError, AudioInputError, ParameterError, TooLargeError
from voxnative.nn.speech_nets import SpeechNets
from voxnative.serving.voice_recording import trim_silence, voice_samples
from voxnative.serving.voices import OPENAI_VOICES, VoiceStore, builtin_seed, content_id

RATE_HZ = 16_000
CONSENT = "recorded and agreed to by the speaker"


def speech(seconds: float, pitch_hz: float = 150.0, rate_hz: int = RATE_HZ) -> np.ndarray:
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    return (0.2 * np.sin(2 * np.pi * pitch_hz * t)).astype(np.float32)


def file_of(samples: np.ndarray, rate_hz: int = RATE_HZ, container: str = "WAV") -> bytes:
    buffer = io.BytesIO()
    sf.write(buffer, samples, rate_hz, format=container)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def nets() -> SpeechNets:
    return load_speech_nets(TRAINED_TINY)


@pytest.fixture
def store(tmp_path: Path, nets: SpeechNets) -> VoiceStore:
    return open_store(tmp_path / "voices", nets)


def open_store(directory: Path, nets: SpeechNets) -> VoiceStore:
    config = VoxConfig.from_dir(TRAINED_TINY)

    async def encode(samples: np.ndarray) -> np.ndarray:
        padded = np.pad(samples, (0, -len(samples) % config.patch_samples_in))
        frames = nets.audio_vae.encode(torch.from_numpy(padded)[None])
        return frames.reshape(-1, config.patch_size, config.feat_dim).numpy()

    return VoiceStore(directory, config.vae.sample_rate_hz, encode)


def register(store: VoiceStore, name: str, samples: np.ndarray, **more: str):
    return asyncio.run(store.register(name, samples, **({"consent": CONSENT} | more)))


# The recording


def read(recording: bytes, max_bytes: int = 10_000_000) -> np.ndarray:
    return voice_samples(
        recording, sample_rate_hz=RATE_HZ, max_bytes=max_bytes, field="audio_sample"
    )


@pytest.mark.parametrize("container", ["WAV", "FLAC", "OGG", "MP3"])
def test_silence_around_the_speech_is_cut(container: str) -> None:
    quiet = np.zeros(RATE_HZ * 5, np.float32)
    samples = read(file_of(np.concatenate([quiet, speech(2.0), quiet]), container=container))
    assert len(samples) / RATE_HZ == pytest.approx(2.2, abs=0.15)


def test_noise_far_below_the_speech_is_cut_and_pauses_inside_are_kept() -> None:
    noise = 1e-4 * np.random.default_rng(0).standard_normal(RATE_HZ).astype(np.float32)
    spoken = np.concatenate([noise, speech(0.7), noise, speech(0.7), noise])
    assert len(trim_silence(spoken, RATE_HZ)) / RATE_HZ == pytest.approx(2.6, abs=0.05)


def test_speech_without_silence_is_left_as_it_is() -> None:
    np.testing.assert_array_equal(trim_silence(speech(1.5), RATE_HZ), speech(1.5))


def test_other_rates_and_channels() -> None:
    stereo = np.stack([speech(2.0, rate_hz=44_100)] * 2, axis=1)
    samples = read(file_of(stereo, 44_100))
    assert samples.ndim == 1
    assert len(samples) == pytest.approx(2 * RATE_HZ, abs=2)


@pytest.mark.parametrize(
    ("recording", "kind", "valid"),
    [
        (file_of(speech(0.9)), AudioInputError, "1 to 30 seconds"),
        (file_of(speech(30.5)), AudioInputError, "1 to 30 seconds"),
        (file_of(speech(121), container="FLAC"), AudioInputError, "at most 120 seconds"),
        (
            file_of(np.concatenate([speech(0.5), np.zeros(RATE_HZ * 9, np.float32)])),
            AudioInputError,
            "1 to 30 seconds",
        ),
        (file_of(np.zeros(RATE_HZ * 2, np.float32)), AudioInputError, "not silent"),
        (b"no recording" * 100, AudioFormatError, "readable"),
        (b"", AudioInputError, "not empty"),
    ],
)
def test_recordings_that_are_no_voice(recording: bytes, kind: type, valid: str) -> None:
    with pytest.raises(kind) as caught:
        read(recording)
    assert caught.value.field == "audio_sample"
    assert valid in caught.value.valid


def test_a_large_file_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(TooLargeError, match="at most 99 bytes"):
        read(b"x" * 100, max_bytes=99)


@pytest.mark.parametrize("seconds", [1.0, 30.0])
def test_the_limits_themselves_are_accepted(seconds: float) -> None:
    assert len(read(file_of(speech(seconds)))) == seconds * RATE_HZ


# The store


def test_a_registered_voice_is_found_by_name_and_by_id(store: VoiceStore) -> None:
    info = register(store, "Anna", speech(2.0), transcript="Hello there.")
    for key in ("Anna", info.id):
        voice = store.resolve(key)
        np.testing.assert_array_equal(voice.recording, speech(2.0))
        assert (voice.id, voice.name, voice.seed) == (info.id, "Anna", None)
        assert (voice.sample_rate_hz, voice.transcript) == (RATE_HZ, "Hello there.")
    assert (info.id, "Anna") in store.names()


def test_it_survives_a_restart(store: VoiceStore, nets: SpeechNets) -> None:
    info = register(store, "Anna", speech(2.0))
    again = open_store(store.directory, nets)
    assert again.registered() == [info]
    np.testing.assert_array_equal(again.resolve("Anna").recording, speech(2.0))


def test_servers_that_share_a_directory_see_each_others_voices(
    store: VoiceStore, nets: SpeechNets
) -> None:
    other = open_store(store.directory, nets)
    assert other.registered() == []
    register(store, "Anna", speech(2.0))
    assert other.resolve("Anna").name == "Anna"
    store.delete("Anna")
    with pytest.raises(ParameterError):
        other.resolve("Anna")


def test_the_latents_are_those_of_the_padded_recording(store: VoiceStore, nets: SpeechNets) -> None:
    info = register(store, "Anna", speech(1.3))
    config = VoxConfig.from_dir(TRAINED_TINY)
    with safe_open(store.directory / f"{info.id}.safetensors", "numpy") as file:
        latents = file.get_tensor("latents")
    patch = config.patch_samples_in
    n_patches = -(-len(speech(1.3)) // patch)
    assert latents.shape == (n_patches, config.patch_size, config.feat_dim)
    padded = np.pad(speech(1.3), (0, n_patches * patch - len(speech(1.3))))
    expected = nets.audio_vae.encode(torch.from_numpy(padded)[None])
    np.testing.assert_allclose(latents.reshape(expected[0].shape), expected[0], atol=1e-5)


def test_equal_content_is_one_voice(store: VoiceStore) -> None:
    first = register(store, "Anna", speech(2.0))
    second = register(store, "Berta", speech(2.0))
    assert first.id == second.id
    assert [info.name for info in store.registered()] == ["Berta"]


def test_other_content_is_another_voice(store: VoiceStore) -> None:
    ids = {
        register(store, "Anna", speech(2.0)).id,
        register(store, "Berta", speech(2.0, pitch_hz=151)).id,
        register(store, "Clara", speech(2.0), transcript="Hello.").id,
    }
    assert len(ids) == 3
    assert content_id(speech(2.0), None) in ids


def test_a_name_belongs_to_one_voice(store: VoiceStore) -> None:
    register(store, "Anna", speech(2.0))
    with pytest.raises(ParameterError, match="that no registered voice has"):
        register(store, "Anna", speech(3.0))
    np.testing.assert_array_equal(store.resolve("Anna").recording, speech(2.0))


def test_of_two_at_once_one_gets_the_name(store: VoiceStore) -> None:
    async def both() -> list[object]:
        calls = [store.register("Anna", speech(s), consent=CONSENT) for s in (2.0, 3.0)]
        return await asyncio.gather(*calls, return_exceptions=True)

    results = asyncio.run(both())
    assert sum(isinstance(result, ParameterError) for result in results) == 1
    assert len(store.registered()) == 1


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", " Anna", "Anna ", "a" * 65, "../Anna", "a/b", "a\\b", "a\0b", "a\nb", "<b>"),
        "voice_" + "0" * 24,
    ],
)
def test_bad_names(store: VoiceStore, name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        register(store, name, speech(2.0))
    assert caught.value.field == "name"
    assert store.registered() == []


@pytest.mark.parametrize("name", ["a", "Anna-Maria O'Neil", "小明", "my_voice.2", "a" * 64])
def test_good_names(store: VoiceStore, name: str) -> None:
    register(store, name, speech(2.0))
    assert store.resolve(name).name == name


def test_a_deleted_voice_is_gone(store: VoiceStore) -> None:
    info = register(store, "Anna", speech(2.0))
    assert store.delete("Anna") == info
    assert store.delete("Anna") is None
    assert list(store.directory.iterdir()) == []
    with pytest.raises(ParameterError) as caught:
        store.resolve("Anna")
    assert caught.value.field == "voice"


@pytest.mark.parametrize("key", ["nobody", "", "../voices/x", "voice_" + "0" * 24, "."])
def test_unknown_voices(store: VoiceStore, key: str) -> None:
    with pytest.raises(ParameterError) as caught:
        store.resolve(key)
    assert "/v1/audio/voices" in caught.value.valid
    assert store.delete(key) is None


# OpenAI's names


def test_openais_names_have_seeds_that_never_change(store: VoiceStore) -> None:
    assert len(OPENAI_VOICES) == len({builtin_seed(name) for name in OPENAI_VOICES}) == 13
    assert builtin_seed("alloy") == 2016024275750959699
    for name in OPENAI_VOICES:
        voice = store.resolve(name)
        assert (voice.id, voice.seed, voice.recording) == (name, builtin_seed(name), None)
    assert store.names() == [(name, name) for name in OPENAI_VOICES]


def test_default_is_no_voice_in_particular(store: VoiceStore) -> None:
    found = store.resolve("default")
    assert (found.seed, found.recording) == (None, None)
    assert "default" not in dict(store.names())


def test_a_registered_voice_takes_a_name_of_openai_over(store: VoiceStore) -> None:
    info = register(store, "alloy", speech(2.0))
    assert store.resolve("alloy").id == info.id
    assert [name for _, name in store.names()].count("alloy") == 1
    store.delete("alloy")
    assert store.resolve("alloy").seed == builtin_seed("alloy")


# The files


def test_a_failed_write_leaves_nothing_and_hurts_nothing(
    store: VoiceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(store, "Anna", speech(2.0))

    def full_disk(_descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        register(store, "Berta", speech(3.0))
    assert [path.suffix for path in store.directory.iterdir()] == [".safetensors"]
    assert [info.name for info in store.registered()] == ["Anna"]


def test_files_that_are_no_voice_are_left_out(
    store: VoiceStore, caplog: pytest.LogCaptureFixture
) -> None:
    info = register(store, "Anna", speech(2.0))
    whole = (store.directory / f"{info.id}.safetensors").read_bytes()
    other = {"__metadata__": {"by": "somebody else"}}
    header = json.dumps(other).encode()
    for name, content in {
        "empty.safetensors": b"",
        "half.safetensors": whole[: len(whole) // 2],
        "renamed.safetensors": whole,
        "other.safetensors": struct.pack("<Q", len(header)) + header,
        "notes.txt": b"not a voice",
        ".x.part": whole,
    }.items():
        (store.directory / name).write_bytes(content)
    with caplog.at_level("WARNING"):
        assert store.registered() == [info]
        n_warnings = len(caplog.records)
        assert store.registered() == [info]
    assert n_warnings == len(caplog.records) == 4  # each file once, not at every request
    assert "Anna" not in caplog.text
