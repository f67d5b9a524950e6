"""How two workers of pytest-xdist share the tests (`make test`).

The tests that share a server go to one worker, those that share engines to the other, so that
none is started twice; every other file goes to whichever worker is free. The training recipe takes
longest of these and joins the server's: alone at the end it would keep one worker waiting.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class ByEngine(LoadScopeScheduling):
    """Scopes are the two groups and each other file; those with the most tests go first."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith("tests/examples/"):
            return "server"
        if file.startswith(("tests/e2e/", "tests/perf/")):
            return "server" if "serve" in file else "engine"  # test_serve_*.py, test_vllm_serve.py
        return file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByEngine:
    return ByEngine(config, log)
