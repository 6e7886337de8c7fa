"""Check stacks of SGEMM's networks on a GPU, eager and compiled into CUDA graphs.

Part of `benchmarks.gpu_check`.  Goal: the five seeds of a run train at least 15 times as fast as one after another.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.attempt import Lines, attempt
from stages.papers.dac.mlp import DACMLP, MLP
from stages.papers.dac.mlp_stack import Stack
from stages.run import OptimizerSpec, Protocol, Replicate, SplitSpec
from stages.training.loop import Outcome, fit, seeded_model
from stages.training.stacked import fit_stack
from stages.training.tables import Regression, TableRows


def trained_stacks(device: torch.device, *, rows: int, count: int = 5) -> Lines:
    """Compare `fit_stack` with the CPU's losses, which it must follow, and with `fit` on the GPU."""
    protocol = Protocol(
        optimizer=OptimizerSpec(name="adam", lr=0.001, weight_decay=0.00002, decay="kernels"),
        batch_size=1024,
        epochs=3,
        split=SplitSpec(kind="fraction", fraction=0.17647),
    )
    replicates = [Replicate(seed=seed) for seed in range(count)]
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(rows, 14, generator=generator)
    targets = features.sum(1).sin()

    def task(place: torch.device) -> Regression:
        return Regression(TableRows(features.to(place), targets.to(place)))

    def networks(kind: type[nn.Module], place: torch.device, broken: int) -> list[nn.Module]:
        built = [seeded_model(lambda: kind(in_features=14, depth=5, width=25), one).to(place) for one in replicates]
        with torch.no_grad():
            for network in built[:broken]:
                network.get_parameter("head.weight").mul_(1e30)
        return built

    def stacked(kind: type[nn.Module], place: torch.device, broken: int, *, is_compiled: bool) -> list[Outcome]:
        built = networks(kind, place, broken)
        rows = task(place)
        trained = fit_stack(built, Stack, rows, protocol, replicates, is_compiled=is_compiled, test=rows)
        return [outcome for outcome, _ in trained]

    def follow_cpu(kind: type[nn.Module], way: str, broken: int, wanted: list[float], alone: float) -> dict[str, Any]:
        found = stacked(kind, device, broken, is_compiled=way != "eager")
        left = [one for one in found if one.history]
        difference = max(abs(ours / cpu - 1) for ours, cpu in zip(_losses(left), wanted, strict=True))
        times = len(left) * alone / sum(one.epoch_seconds[-1] for one in left)
        return {"times_alone": times, "difference": difference, "ok": difference < 0.02}

    graphs = "compiled into graphs"
    for kind in (MLP, DACMLP):
        alone = fit(networks(kind, device, 0)[0], task(device), protocol, replicates[0]).epoch_seconds[-1]
        # Once most have diverged, the rest is recompiled.
        for broken, ways in ((0, ("eager", graphs)), (count // 2 + 1, (graphs,))):
            wanted = _losses(stacked(kind, torch.device("cpu"), broken, is_compiled=False))
            for way in ways:
                line = {"check": "a stack's losses follow the CPU's", "network": kind.__name__, "networks": count}
                line |= {"diverging": broken, "way": way, "goal": 15.0, "ok": False}
                yield attempt(line, partial(follow_cpu, kind, way, broken, wanted, alone))


def _losses(outcomes: list[Outcome]) -> list[float]:
    return [row[f"{part}_loss"] for one in outcomes for row in one.history for part in ("train", "val", "test")]
