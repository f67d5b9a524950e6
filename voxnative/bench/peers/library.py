"""Opening a peer, if it is installed or reachable."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from voxnative.bench.errors import BenchError
from voxnative.bench.http_target import HttpTarget
from voxnative.bench.matrix import Row
from voxnative.bench.paths import find_path
from voxnative.bench.peers.spec import PeerSpec
from voxnative.bench.target import Target

_MODULE = {"voxcpm": "voxcpm", "nano-vllm-voxcpm": "nanovllm_voxcpm"}


def why_not(spec: PeerSpec) -> str | None:
    """Why a peer cannot run here; None where nothing is known against it."""
    module = _MODULE.get(spec.kind)
    if module is not None and importlib.util.find_spec(module) is None:
        return f"{module} is not installed"
    return None


def open_peer(spec: PeerSpec, row: Row, model: str, matrix: Path) -> Target:
    """The target of a peer, not started.

    Args:
        spec: the peer.
        row: the row that it is to run.
        model: the row's checkpoint directory, or the name it is served under.
        matrix: the file that names the peer; paths are looked for around it.

    Raises:
        BenchError: the peer takes no such row, or a folder of it is not there.
    """
    if spec.kind == "openai":
        assert spec.url is not None
        # OpenAI's schema wants a model and a voice in every request.
        fields = {"model": spec.model or model, "voice": "alloy"} | dict(row.extra_body)
        return HttpTarget(
            spec.name,
            spec.url,
            row.endpoint,
            extra_body=fields | dict(spec.extra_body),
            sample_rate_hz=spec.sample_rate_hz,
        )
    folders = {name: _folder(spec, at, matrix) for name, at in spec.stand_ins.items()}
    if spec.kind == "voxcpm":
        from voxnative.bench.peers.voxcpm_reference import ReferenceTarget

        return ReferenceTarget(spec.name, spec.model or model, spec.options, folders)
    if spec.kind == "nano-vllm-voxcpm":
        from voxnative.bench.peers.nano_vllm import NanoVllmTarget

        return NanoVllmTarget(spec.name, spec.model or model, spec.options, folders)
    raise BenchError(f"peer {spec.name}: kind {spec.kind} is not valid")


def _folder(spec: PeerSpec, given: str, matrix: Path) -> Path:
    found = find_path(given, matrix)
    if found is None:
        raise BenchError(f"peer {spec.name}: stand_ins: no folder {given}")
    return found
