"""Trainings that nothing compiles never load PyTorch's compiler; what does compile finds it whole.

Each test is a process of its own, for the process of the tests may have the compiler loaded.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
BEGIN = """
import sys
import torch
from stages.dynamo import defer_dynamo

def train():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
    return model.weight.detach().clone()

def is_loaded():
    return "torch._dynamo.convert_frame" in sys.modules
"""


def run(code: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", BEGIN + code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr


def test_steps_load_no_compiler_and_are_the_same() -> None:
    run("""
defer_dynamo()
deferred = train()
assert not is_loaded()
import inspect
inspect.getmodule(train)  # looks at every module that there is
assert not is_loaded()
torch._dynamo.reset()
assert is_loaded()
assert torch.equal(train(), deferred)
""")


@pytest.mark.parametrize(
    "use",
    [
        "import torch._dynamo.config; assert torch._dynamo.config.cache_size_limit",
        "assert torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)).item() == 2",
    ],
)
def test_a_use_loads_it_and_the_optimiser_is_again_closed_to_it(use: str) -> None:
    run(f"""
defer_dynamo()
train()
kept = torch.optim.Optimizer.zero_grad.__wrapped__
assert vars(kept)["__dynamo_disable"] is kept
{use}
assert is_loaded() and sys.modules["torch._dynamo"] is torch._dynamo
train()
assert vars(kept)["__dynamo_disable"] is not kept
""")
