from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import numpy, resource
from stages.training.memory import keep_freed_memory
assert keep_freed_memory() == {keep}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    numpy.ones(32 * 2**20, dtype="uint8")
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(min(faults() for _ in range(3)))
"""


def page_faults(script: str) -> int:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_memory_freed_once_is_not_touched_anew() -> None:
    kept = page_faults(SCRIPT.format(keep=True))
    given_back = page_faults(SCRIPT.replace("assert keep_freed_memory() == {keep}", ""))
    assert kept < given_back / 10, (kept, given_back)
