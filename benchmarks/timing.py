"""Times both sides of a comparison in one run: A B A B …, medians, the ratio pair by pair, and the line of the table.

On a CPU a side's time is the processor time of the process, all its threads together, which other work on the machine
hardly affects.  Code that uses other processes or waits is timed by the wall clock, and says so.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F

from stages.memory import keep_freed_memory
from stages.ops.fast import attention, dac
from stages.training.environment import describe_environment


@dataclass(frozen=True)
class Comparison:
    """Median seconds of both sides; `ratio` is the median of peer / ours over the pairs (above 1: ours is faster)."""

    ours_seconds: float
    peer_seconds: float
    ratio: float
    repeats: int


@dataclass(frozen=True, kw_only=True)
class Line:
    """A goal of the table: `value` has to be at least `goal`, or at most if `at_most`."""

    what: str
    peer: str
    ours: str
    value: float
    goal: float
    at_most: bool = False
    unit: str = "×"

    @property
    def is_met(self) -> bool:
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    def cells(self) -> tuple[str, ...]:
        goal = f"{'at most' if self.at_most else 'at least'} {self.goal:g} {self.unit}"
        return self.what, goal, self.peer, self.ours, f"{self.value:.3g} {self.unit}", "yes" if self.is_met else "no"


HEADINGS = ("what", "goal", "peer", "ours", "measured", "met")


def table(lines: Sequence[Line]) -> str:
    """The table as Markdown."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *(line.cells() for line in lines)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def time_line(what: str, peer: str, result: Comparison, *, goal: float) -> Line:
    """Our time as a multiple of the peer's, which has to stay below `goal`."""
    return Line(
        what=what,
        peer=f"{peer}: {milliseconds(result.peer_seconds)}",
        ours=milliseconds(result.ours_seconds),
        value=1 / result.ratio,
        goal=goal,
        at_most=True,
        unit="× its time",
    )


def training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, batch: int, classes: int, in_bfloat16: bool = False
) -> Callable[[], None]:
    """One step on images of 32 × 32 in three channels: forward, cross-entropy, backward, update."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, 32, 32, generator=generator)
    labels = torch.randint(0, classes, (batch,), generator=generator)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return run


def compare(
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    repeats: int,
    device: torch.device | None = None,
    wall: bool = False,
) -> Comparison:
    """Time both in turn after one uncounted call of each; a CUDA device is synchronised around every call."""
    clock = time.perf_counter if wall or (device is not None and device.type == "cuda") else time.process_time
    pairs = []
    for index in range(repeats + 1):
        pair = _seconds(ours, device, clock), _seconds(peer, device, clock)
        if index:
            pairs.append(pair)
    return Comparison(
        ours_seconds=statistics.median(pair[0] for pair in pairs),
        peer_seconds=statistics.median(pair[1] for pair in pairs),
        ratio=statistics.median(peer_s / ours_s for ours_s, peer_s in pairs),
        repeats=repeats,
    )


def _seconds(call: Callable[[], object], device: torch.device | None, clock: Callable[[], float]) -> float:
    _wait(device)
    start = clock()
    call()
    _wait(device)
    return clock() - start


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def has_bfloat16() -> bool:
    """True if Linux reports that the processor multiplies in bfloat16; without it bfloat16 is emulated, and slower."""
    flags = Path("/proc/cpuinfo")
    return flags.is_file() and not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags.read_text().split())


@contextmanager
def pytorch_alone() -> Iterator[None]:
    """Networks as in a plain script: without our C++, which their operators otherwise use if they find it."""
    absent = {"load_library": lambda source: None}
    with patch.multiple(attention, **absent), patch.multiple(dac, **absent):
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch uses a single thread inside this block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def prepare() -> None:
    """Set the process up as a training does, for both sides: keeping memory belongs to neither.

    Not in `__main__`, where a spawned process doesn't find it.
    """
    keep_freed_memory()


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def machine(device: torch.device) -> tuple[str, str]:
    """Origin of the figures: the kind of machine, and versions."""
    facts = describe_environment(device)
    kind = f"{facts['device_name']}, {facts['threads']} threads, {facts['cpu_capability']}"
    return kind, f"torch {facts['torch']}, Python {platform.python_version()}"
