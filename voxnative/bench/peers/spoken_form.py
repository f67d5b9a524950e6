"""Texts as our own engine hands them to the networks, for peers that have no text front end."""

from __future__ import annotations

from voxnative.config import VoxConfig


def spoken_form(text: str, config: VoxConfig) -> str:
    """The text as the checkpoint's front end spells it; as it is where it asks for none."""
    if config.text_frontend == "english":
        from voxnative.text_frontend import normalize

        return normalize(text)
    return text
