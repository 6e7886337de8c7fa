"""The environment of a run: peak memory is the process's own and starts anew; a device that isn't there is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from stages.device import pick_device
from stages.run import environment_digest
from stages.training import environment
from stages.training.environment import describe_environment, peak_memory_bytes, reset_peak_memory

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def test_peak_memory_is_at_least_what_is_resident_now() -> None:
    held = np.ones(2**24, dtype=np.uint8)
    resident = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert len(held) < 0.99 * resident <= peak_memory_bytes(CPU) < 20 * resident


def test_a_gpu_says_that_its_own_generator_drew_and_a_cpu_says_what_it_always_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "device_name", lambda device: "a GPU")
    facts, own = describe_environment(torch.device("cuda")), describe_environment(CPU)
    assert facts["augmentation_generator"] == "cuda"
    assert facts.keys() - own.keys() == {"augmentation_generator"}


@pytest.mark.slow
def test_peak_memory_is_the_process_own() -> None:
    """A small process started by a larger one, ours."""
    code = (
        "import torch; from stages.training.environment import peak_memory_bytes;"
        "print(peak_memory_bytes(torch.device('cpu')))"
    )
    ballast = np.ones(2**30, dtype=np.uint8)
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(finished.stdout) < len(ballast) < peak_memory_bytes(CPU)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="only Linux can start the peak anew")
def test_peak_memory_starts_anew() -> None:
    ballast = np.ones(2**26, dtype=np.uint8)
    before = peak_memory_bytes(CPU)
    del ballast
    reset_peak_memory(CPU)
    assert peak_memory_bytes(CPU) < before - 2**25


def test_same_machine_has_the_same_digest_and_threads_count() -> None:
    facts = describe_environment(CPU)
    assert environment_digest(facts) == environment_digest(dict(reversed(facts.items())))
    assert environment_digest(facts | {"threads": facts["threads"] + 1}) != environment_digest(facts)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_device_is_refused_with_what_would_work() -> None:
    assert pick_device("auto") == CPU
    with pytest.raises(ValueError, match="sees 0 CUDA devices here; use cpu"):
        pick_device("cuda")
