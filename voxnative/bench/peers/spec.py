"""A peer as a matrix names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from voxnative.bench.errors import BenchError
from voxnative.bench.fields import Fields

LIBRARIES = ("voxcpm", "nano-vllm-voxcpm")
KINDS = (*LIBRARIES, "openai")


@dataclass(frozen=True)
class PeerSpec:
    """One peer.

    Attributes:
        name: in the report.
        kind: see `KINDS`; "openai" is any server with OpenAI's speech endpoint.
        url: of a server, "http://host:port".
        model: what the peer is asked for; the row's own model when None.
        extra_body: fields added to each request to a server; null takes a field away.
        options: keyword arguments of a library's loader.
        sample_rate_hz: of a server whose answers do not state theirs.
        stand_ins: module that a library asks for -> the folder that holds one to use where it is
            not installed.
    """

    name: str
    kind: str
    url: str | None = None
    model: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    sample_rate_hz: int | None = None
    stand_ins: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, content: Any, test_name: str) -> PeerSpec:
        """Read one entry of `peers`: a kind's name alone, or an object.

        Raises:
            BenchError: names the key and what is valid.
        """
        fields = Fields({"kind": content} if isinstance(content, str) else content, test_name)
        fields.where = f"{test_name}.peers"
        kind = fields.choice("kind", KINDS)
        spec = cls(
            name=fields.text("name", kind) or kind,
            kind=kind,
            url=fields.text("url"),
            model=fields.text("model"),
            extra_body=fields.mapping("extra_body"),
            options=fields.mapping("options"),
            sample_rate_hz=fields.whole("sample_rate_hz", minimum=1),
            stand_ins=fields.mapping("stand_ins"),
        )
        fields.finish()
        if (spec.kind == "openai") != (spec.url is not None):
            raise BenchError(f"{fields.where}: url belongs to kind openai, which needs it")
        if spec.stand_ins and spec.kind not in LIBRARIES:
            raise BenchError(
                f"{fields.where}: stand_ins belongs to the kinds {', '.join(LIBRARIES)}"
            )
        return spec
