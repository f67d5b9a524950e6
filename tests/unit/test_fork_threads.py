"""A forked child computes, whatever its parent has computed."""

import subprocess
import sys

import pytest

SCRIPT = """
import multiprocessing, sys, torch
if sys.argv[1] == "guarded":
    from voxnative.engine.fork_threads import compute_alone_after_a_fork
    compute_alone_after_a_fork()

def compute():
    values = torch.ones(2000, 2000)
    assert float((values * 2).sum()) == 8e6

torch.set_num_threads(2)
compute()
child = multiprocessing.get_context("fork").Process(target=compute)
child.start()
child.join(10)
print(child.exitcode, torch.get_num_threads())
child.kill()
"""


@pytest.mark.parametrize(("which", "said"), [("guarded", "0 2"), ("as it is", "None 2")])
def test_child_of_a_process_that_used_openmp(which: str, said: str) -> None:
    """The second case shows that the first one's trap is there."""
    command = [sys.executable, "-c", SCRIPT, which]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip() == said
