import os

import pytest

from tests.preloaded import python
from tests.project import REPOSITORY

pytestmark = pytest.mark.slow

SCRIPT = """
import numpy, resource
from stages.device import keep_freed_memory
assert keep_freed_memory() == {keep}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    numpy.ones(32 * 2**20, dtype="uint8")
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(min(faults() for _ in range(3)))
"""


def printed_number(script: str) -> int:
    done = python("-c", script, cwd=REPOSITORY, env=os.environ)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_freed_memory_is_reused_without_new_page_faults() -> None:
    kept = printed_number(SCRIPT.format(keep=True))
    given_back = printed_number(SCRIPT.replace("assert keep_freed_memory() == {keep}", ""))
    assert kept < given_back / 10, (kept, given_back)


def test_peak_resets_although_freed_memory_is_retained() -> None:
    script = """
import numpy, torch
from stages.training.process import peak_memory_bytes, reset_peak_memory
from stages.device import keep_freed_memory
keep_freed_memory()
cpu = torch.device("cpu")
numpy.ones(256 * 2**20, dtype="uint8")
before = peak_memory_bytes(cpu)
reset_peak_memory(cpu)
print(before - peak_memory_bytes(cpu))
"""
    assert printed_number(script) > 200 * 2**20
