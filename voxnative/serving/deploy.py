"""Deploy files: vLLM's own keys for one class of machines, and our `voxnative:` section."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from voxnative.serving.settings import CONFIG_KEY, ServerSettings, SettingsError


@dataclass(frozen=True)
class Deploy:
    """A deploy file as it was read.

    Attributes:
        engine: vLLM's keys, with underscores.
        server: our section, checked.
    """

    engine: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)


def read_deploy(path: Path, engine_keys: Collection[str]) -> Deploy:
    """Read and check a file.

    Args:
        path: a YAML file.
        engine_keys: keys that vLLM's server knows, with underscores.

    Raises:
        SettingsError: no such file, no YAML, or an unknown key; names it and the valid ones.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise SettingsError(f"--deploy {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"--deploy {path} is no YAML file: {error}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"--deploy {path} holds no keys; valid: 'key: value' lines")
    section = content.pop(CONFIG_KEY, None) or {}
    ServerSettings.from_mapping(section)
    engine = {str(key).replace("-", "_"): value for key, value in content.items()}
    for key in engine:
        if key not in engine_keys:
            raise SettingsError(
                f"unknown key '{key}' in {path}; valid: '{CONFIG_KEY}' and vLLM's own: "
                + ", ".join(sorted(engine_keys))
            )
    return Deploy(engine, section)


def as_flags(engine: Mapping[str, Any]) -> list[str]:
    """vLLM's keys as its command line takes them; a key without a value is left out."""
    flags: list[str] = []
    for key, value in engine.items():
        name = key.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            flags += [f"--{name}", *map(str, value)]
        elif isinstance(value, dict):
            flags.append(f"--{name}={json.dumps(value)}")
        else:
            flags.append(f"--{name}={value}")
    return flags
