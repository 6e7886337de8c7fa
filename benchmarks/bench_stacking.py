"""Goals for stacks of 16 of SGEMM's networks on a CPU, in steps of one network per second.

Compiled stacks must be 2.2 times as fast as the fastest peer at 25 units, 1.3 times at 50, and never slower. Peers are
`fit`, and scripts with forward, backward and a fused Adam on one fixed batch, eager or compiled: of one network (DAC's
with our sums, which compiled code keeps), and of all base networks, stacked as batched products.

Batches have 1,024 rows; all sides use Adam and one thread, as with one slot per core, and flush denormals. The rate
excludes compiling; `stages.scheduling.groups` decides when it pays.
Run: python -m benchmarks stacking
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import Line, race, setting
from stages.papers.dac.mlp import DACMLP, MLP
from stages.papers.dac.mlp_stack import Stack
from stages.run import OptimizerSpec, Protocol, Replicate
from stages.training.loop import Progress, fit, seeded_model
from stages.training.protocol import build_optimizer
from stages.training.session import flushing_denormals
from stages.training.stacked import fit_stack
from stages.training.tables import Regression, TableRows

BATCH, COLUMNS, ROUNDS = 1024, 14, 3
Train = Callable[[Callable[[Progress], None]], object]


@dataclass(frozen=True)
class Case:
    kind: type[MLP | DACMLP]
    width: int
    depth: int
    count: int
    steps: int
    goal: float


CASES = (
    Case(MLP, 25, 6, 16, 20, 2.2),
    Case(MLP, 50, 6, 16, 15, 1.3),
    Case(MLP, 50, 8, 5, 20, 1.3),
    Case(MLP, 100, 8, 5, 10, 1.0),
    Case(MLP, 200, 8, 5, 8, 1.0),
    Case(MLP, 25, 6, 1, 100, 1.0),
    Case(DACMLP, 18, 6, 5, 20, 1.0),
    Case(DACMLP, 25, 6, 5, 20, 1.0),
    Case(DACMLP, 141, 8, 5, 8, 1.0),
    Case(DACMLP, 25, 6, 1, 60, 1.0),
)


def measure() -> list[Line]:
    with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=cache):
        return [*(compare_with_one_by_one(case) for case in CASES), compare_with_denormals()]


def compare_with_one_by_one(case: Case) -> Line:
    generator = torch.Generator().manual_seed(0)
    rows = case.steps * BATCH
    task = Regression(
        TableRows(torch.randn(rows, COLUMNS, generator=generator), torch.randn(rows, generator=generator))
    )
    replicates = [Replicate(seed=seed) for seed in range(case.count)]

    def networks(chosen: Sequence[Replicate]) -> list[torch.nn.Module]:
        return [
            seeded_model(lambda: case.kind(in_features=COLUMNS, depth=case.depth, width=case.width), one)
            for one in chosen
        ]

    def stacked(progress: Callable[[Progress], None]) -> object:
        built = networks(replicates)
        return fit_stack(built, Stack, task, protocol(1), replicates, is_compiled=True, progress=progress)

    def alone(progress: Callable[[Progress], None]) -> object:
        return fit(networks(replicates[:1])[0], task, protocol(4), replicates[0], progress=progress)

    peers = {"`fit`": lambda: rate(alone)}
    for way in ("eager", "compiled"):
        peers[f"script, {way}"] = partial(script_rate, script(case, way), max(case.steps, 20))
    if case.kind is MLP:
        together = partial(script_rate, stacked_script(case), max(case.steps, 20))
        peers["stacked script, compiled"] = lambda: case.count * together()
    with flushing_denormals():
        turns = [(rate(stacked), {name: peer() for name, peer in peers.items()}) for _ in range(ROUNDS)]
    ours = statistics.median(case.count * own for own, _ in turns)
    rates = {name: statistics.median(others[name] for _, others in turns) for name in peers}
    best = max(rates, key=lambda name: rates[name])
    name = "DAC" if case.kind is DACMLP else "base"
    return Line(
        what=f"SGEMM, {case.count} {name} network{'s' * (case.count > 1)} of {case.depth} x {case.width} units stacked",
        peer=f"{best}: {rates[best]:.0f} steps/s",
        ours=f"{ours:.0f} steps/s",
        value=statistics.median(case.count * own / theirs[best] for own, theirs in turns),
        goal=case.goal,
        setting=setting("float32"),
    )


def script(case: Case, way: str) -> Callable[[], None]:
    """Return a step of one network: forward, backward and a fused Adam on one batch."""
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.randn(BATCH, COLUMNS, generator=generator), torch.randn(BATCH, generator=generator)
    torch.manual_seed(0)
    network = case.kind(in_features=COLUMNS, depth=case.depth, width=case.width)
    optimizer = build_optimizer(network, protocol(1).optimizer, fused=True)
    forward = torch.compile(network) if way == "compiled" else network

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.mse_loss(forward(features).squeeze(1), targets).backward()
        optimizer.step()

    return run


class StackedScript(torch.nn.Module):
    """S base networks as a user would stack them: [S, B, F] -> [S, B], with batch normalisation of each."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        sizes = [COLUMNS, *[case.width] * case.depth, 1]
        shapes = list(pairwise(sizes))
        self.weights = torch.nn.ParameterList(torch.randn(case.count, *shape) / shape[0] ** 0.5 for shape in shapes)
        self.scales = torch.nn.ParameterList(torch.ones(case.count, 1, units) for units in sizes[1:-1])
        self.shifts = torch.nn.ParameterList(torch.zeros(case.count, 1, units) for units in sizes[1:])

    def forward(self, x: Tensor) -> Tensor:
        for weight, scale, shift in zip(self.weights, self.scales, self.shifts, strict=False):
            x = torch.bmm(x, weight)
            variance, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
            x = F.relu((x - mean) * torch.rsqrt(variance + 1e-5) * scale + shift)
        return torch.baddbmm(self.shifts[-1], x, self.weights[-1]).squeeze(2)


def stacked_script(case: Case) -> Callable[[], None]:
    """Return a step of all networks at once, without the running statistics that evaluation needs."""
    torch.manual_seed(0)
    features, targets = torch.randn(case.count, BATCH, COLUMNS), torch.randn(case.count, BATCH)
    network = StackedScript(case)
    optimizer, forward = torch.optim.Adam(network.parameters(), lr=0.01, fused=True), torch.compile(network)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.mse_loss(forward(features), targets, reduction="none").mean(1).sum().backward()
        optimizer.step()

    return run


def script_rate(step: Callable[[], None], count: int) -> float:
    """Return steps per second of CPU time after two uncounted ones."""
    step(), step()
    began = time.process_time()
    for _ in range(count):
        step()
    return count / (time.process_time() - began)


def compare_with_denormals() -> Line:
    """Compare forward and backward if a quarter of the weights is as small as Adam's L2 term leaves dead ones."""
    torch.manual_seed(0)
    stack = Stack([MLP(in_features=COLUMNS, depth=8, width=25) for _ in range(5)])
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter[torch.rand(parameter.shape) < 0.25] = 1e-39
    features, targets = torch.randn(5, BATCH, COLUMNS), torch.randn(5, BATCH)

    def step(is_flushing: bool) -> Callable[[], None]:
        def run() -> None:
            torch.set_flush_denormal(is_flushing)
            stack.losses(features, targets).sum().backward()
            torch.set_flush_denormal(False)

        return run

    result = race({"flushed": step(True)}, {"denormals kept": step(False)}, rounds=9)
    return result.line("SGEMM, 5 base networks of 8 x 25 units with a quarter of the weights denormal", 1.0)


def rate(train: Train) -> float:
    """Return steps per second of CPU time, without the first one."""
    times: list[float] = []
    train(lambda _: times.append(time.process_time()))
    return (len(times) - 1) / (times[-1] - times[0])


def protocol(epochs: int) -> Protocol:
    return Protocol(
        optimizer=OptimizerSpec(name="adam", lr=0.01, weight_decay=0.00002, decay="kernels"),
        batch_size=BATCH,
        epochs=epochs,
        observe_test=False,
    )
