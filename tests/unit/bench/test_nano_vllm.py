"""Our adapter for nano-vllm-voxcpm against that package's own classes; its worker needs CUDA."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.perf.peer import STAND_INS
from voxnative.bench.matrix import read_matrix
from voxnative.bench.peers.nano_vllm import NanoVllmTarget
from voxnative.bench.peers.published_form import published_form
from voxnative.bench.peers.stand_ins import stand_ins
from voxnative.bench.record import SpeechTask
from voxnative.bench.target import RequestError
from voxnative.config import VoxConfig
from voxnative.tokenizer import TextTokenizer

TINY = "voxnative/checkpoints/tiny"
MATRIX = "tests/dfx/perf/tests/test_voxcpm2.json"
VOICE = "voxnative/bench/data/seed_tts_small/en/prompt-wavs/flite-slt.wav"
WORDS = "The harbour lay quiet."
BODY = {"voice": "alloy", "max_new_tokens": 60, "inference_timesteps": 10, "max_silence_s": 0}


@pytest.fixture(scope="module")
def peer() -> Iterator[ModuleType]:
    """Its server's module, with the stand-in for librosa that the GPU report uses.

    There is no flash_attn for a CPU; the server's module needs its names alone.
    """
    flash_attn = ModuleType("flash_attn")
    for name in ("flash_attn_varlen_func", "flash_attn_with_kvcache", "flash_attn_func"):
        setattr(flash_attn, name, None)
    spec = importlib.util.spec_from_file_location("librosa", STAND_INS / "librosa/librosa.py")
    librosa = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(librosa)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "flash_attn", flash_attn)
        patch.setitem(sys.modules, "librosa", librosa)
        import nanovllm_voxcpm.models.voxcpm2.server as server

        yield server
    for name in [name for name in sys.modules if name.split(".")[0] == "nanovllm_voxcpm"]:
        del sys.modules[name]  # elsewhere it is a peer that says what it lacks


@pytest.fixture(scope="module")
def tiny(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped checkpoint as the peer is given it."""
    return published_form(repo / TINY, tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def target(repo: Path) -> NanoVllmTarget:
    return NanoVllmTarget("nano", str(repo / TINY), {"max_num_seqs": 4})


def task(repo: Path, **changes: Any) -> SpeechTask:
    return SpeechTask(0, "0", "It costs $5.", 7, **changes)


def tasks(repo: Path) -> dict[str, SpeechTask]:
    voice = str(repo / VOICE)
    return {
        "plain": task(repo, extra_body=BODY),
        "described": task(repo, description="an old man"),
        "reference": task(repo, reference=voice),
        "continuation": task(repo, reference=voice, reference_text=WORDS),
    }


def vae_of(directory: Path) -> Any:
    from nanovllm_voxcpm.layers.audio_vae_v2 import AudioVAEV2
    from nanovllm_voxcpm.models.voxcpm2.config import VoxCPM2Config

    content = (directory / "config.json").read_text()
    vae = AudioVAEV2(config=VoxCPM2Config.model_validate_json(content).audio_vae_config)
    vae.load_state_dict(torch.load(directory / "audiovae.pth")["state_dict"])
    return vae


def engine_of(directory: Path, target: NanoVllmTarget) -> Any:
    """The peer's engine with its tokenizer and its AudioVAE, and without its GPU worker."""
    from nanovllm_voxcpm.models.voxcpm2.engine import VoxCPM2Engine
    from nanovllm_voxcpm.models.voxcpm2.utils import mask_multichar_chinese_tokens
    from transformers import LlamaTokenizerFast

    vae, config = vae_of(directory), VoxConfig.from_dir(directory)

    class Engine(VoxCPM2Engine):
        def __init__(self) -> None:
            self.n_decode_pad_frames, self.block_size = 12, 256
            self.feat_dim, self.patch_size = config.feat_dim, config.patch_size
            self.audio_start_token = 101
            self.ref_audio_start_token, self.ref_audio_end_token = 103, 104
            self.max_model_len = target.facts()["options"]["max_model_len"]
            self.tokenizer = mask_multichar_chinese_tokens(
                LlamaTokenizerFast.from_pretrained(directory)
            )
            self.model_runner = SimpleNamespace(vae=vae, encode_latents=self._encode)
            self.added: list[Any] = []

        def _encode(self, wav: torch.Tensor) -> np.ndarray:
            latents = vae.encode(wav, vae.sample_rate).permute(0, 2, 1)
            return latents.reshape(-1, self.feat_dim).numpy()

        def add_sequence(self, seq: Any) -> None:
            self.added.append(seq)

    return Engine()


def test_its_pool_is_as_we_call_it(peer: ModuleType, repo: Path, target: NanoVllmTarget) -> None:
    from nanovllm_voxcpm import VoxCPM

    pool = peer.AsyncVoxCPM2ServerPool
    assert inspect.isasyncgenfunction(pool.generate)
    for what in tasks(repo).values():
        latents = b"" if what.reference else None
        inspect.signature(pool.generate).bind(None, **target.arguments(what, latents))
    inspect.signature(pool.encode_latents).bind(None, b"", "wav")
    assert all(inspect.iscoroutinefunction(f) for f in (pool.wait_for_ready, pool.stop))
    names = set(inspect.signature(VoxCPM.from_pretrained).parameters)
    assert target.facts()["options"].keys() <= names
    asked = [p for row in read_matrix(repo / MATRIX) for p in row.peers]
    asked = [p for p in asked if p.kind == "nano-vllm-voxcpm"]
    assert asked
    assert all(spec.options.keys() <= names for spec in asked)


def test_it_loads_every_weight_of_the_published_form(
    peer: ModuleType, repo: Path, tiny: Path
) -> None:
    from nanovllm_voxcpm.models.voxcpm2.config import VoxCPM2Config
    from nanovllm_voxcpm.models.voxcpm2.model import VoxCPM2Model
    from nanovllm_voxcpm.utils.loader import load_model

    config = VoxCPM2Config.model_validate_json((tiny / "config.json").read_text())
    model = VoxCPM2Model(config, 10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    load_model(model, str(tiny))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    shipped = load_file(repo / TINY / "audiovae.safetensors")
    for name, tensor in vae_of(tiny).state_dict().items():
        torch.testing.assert_close(tensor, shipped.pop(name).to(tensor.dtype), rtol=0, atol=0)
    assert not shipped


def test_a_checkpoint_that_is_published_stays_where_it_is(repo: Path, tiny: Path) -> None:
    assert published_form(tiny, Path("/no/where")) == tiny
    assert not (tiny / "audiovae.safetensors").exists()
    assert json.loads((tiny / "config.json").read_text())["architecture"] == "voxcpm2"


@pytest.mark.parametrize("name", ["plain", "described", "reference", "continuation"])
def test_its_engine_takes_our_requests(
    peer: ModuleType, repo: Path, tiny: Path, target: NanoVllmTarget, name: str
) -> None:
    engine, what = engine_of(tiny, target), tasks(repo)[name]
    server = SimpleNamespace(llm=engine, encoder_sample_rate=16_000)
    latents = None
    if what.reference is not None:
        data = Path(what.reference).read_bytes()
        latents = peer.VoxCPM2ServerImpl.encode_latents(server, data, "wav")
    arguments = target.arguments(what, latents)
    peer.VoxCPM2ServerImpl.add_request(server, "id", **arguments)
    (seq,) = engine.added
    payload, text = seq.custom_payload, "It costs five dollars."
    text = {"described": f"(an old man){text}", "continuation": WORDS + text}.get(name, text)
    ids = [*TextTokenizer.from_dir(tiny).encode(text), 101]
    n_patches = sum(payload.feat_masks)
    assert (n_patches > 5) == (what.reference is not None)
    assert [i for i in payload.text_tokens if i not in (0, 103, 104)] == ids
    assert payload.feats[0].shape == (len(payload.text_tokens), 4, 32)
    cfg = VoxConfig.from_dir(tiny).cfm.inference_cfg_rate
    assert (payload.seed, payload.cfg_value) == (7, cfg)
    assert payload.max_generate_length == (60 if name == "plain" else 512)


def test_what_it_has_no_argument_for_is_refused(repo: Path, target: NanoVllmTarget) -> None:
    for body, message in (
        ({"inference_timesteps": 4}, "valid: 10, which the peer's options fix"),
        ({"speed": 2}, "speed is not valid; valid: cfg_value, temperature, max_new_tokens"),
    ):
        with pytest.raises(RequestError, match=message):
            target.arguments(task(repo, extra_body=body), None)


def test_a_worker_that_does_not_start_is_gone_afterwards(
    peer: ModuleType, target: NanoVllmTarget
) -> None:
    async def start() -> None:
        async with target:
            pass

    before = set(multiprocessing.active_children())  # engines of other tests
    with pytest.raises(RuntimeError, match=r"worker process died|CUDA|flash_attn"):
        asyncio.run(start())
    assert set(multiprocessing.active_children()) <= before
    assert not [t for t in threading.enumerate() if t.name.startswith("voxcpm2-queue")]


def test_stand_ins_are_there_for_the_peer_alone(tmp_path: Path) -> None:
    (tmp_path / "not_installed.py").write_text('"""A stand-in."""')
    before = list(sys.path)
    with stand_ins({"not_installed": tmp_path, "numpy": Path("/no/where")}):
        assert sys.path == [*before, str(tmp_path)]
        assert importlib.import_module("not_installed").__doc__ == "A stand-in."
    assert sys.path == before
    assert importlib.util.find_spec("not_installed") is None
