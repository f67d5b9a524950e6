"""Our own engine options: the ``voxnative_engine`` section of vLLM's ``additional_config``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

SECTION = "voxnative_engine"  # "voxnative" holds the server's settings


@dataclass(frozen=True)
class SpeechOptions:
    """Options of the side path; sampling parameters belong to requests, not here.

    Attributes:
        compile_solver: run the velocity network through ``torch.compile``. Off by default on
            a CPU, where it saves a third of the solver's time but costs a minute or more of
            compilation at every start (plan/LOG.md).
    """

    compile_solver: bool = False

    @classmethod
    def from_additional_config(cls, additional_config: Any) -> SpeechOptions:
        """Read the section, strictly.

        Args:
            additional_config: ``VllmConfig.additional_config``.

        Raises:
            ValueError: an unknown key or a value of the wrong type; names what is valid.
        """
        section = additional_config.get(SECTION, {}) if isinstance(additional_config, dict) else {}
        known = {field.name for field in fields(cls)}
        for key, value in section.items():
            if key not in known:
                raise ValueError(
                    f"additional_config['{SECTION}']: unknown key {key!r}; "
                    f"valid: {', '.join(sorted(known))}"
                )
            if not isinstance(value, bool):
                raise ValueError(
                    f"additional_config['{SECTION}']['{key}']: {value!r} is not valid; "
                    "valid: true, false"
                )
        return cls(**section)
