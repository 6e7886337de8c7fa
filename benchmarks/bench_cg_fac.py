"""Goal for CG-FAC on a CPU: a training step with m = 10 takes at most 6 times that of Adam.

The ViT of the CIFAR experiment (width 256, 4 blocks), CG-FAC on its attention layers and Adam elsewhere; a tolerance of
0 makes every solve take all ten iterations.  A step is forward, backward and update, in float32.
Run: python -m benchmarks cg_fac
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.timing import Line, compare, milliseconds
from stages.optim.cg_fac import CGFAC
from stages.papers.brownian.vit import ViT

GOAL, BATCH, ITERATIONS = 6.0, 16, 10


def build() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"image_size": 32, "in_channels": 3, "num_classes": 10, "patch_size": 4, "dim": 256, "depth": 4}
    return ViT(**sizes, num_heads=4, mlp_dim=512)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, 3, 32, 32, generator=generator)
    labels = torch.randint(0, 10, (BATCH,), generator=generator)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return run


def measure() -> list[Line]:
    model, other = build(), build()
    ours = CGFAC(model, lr=1e-4, cg_iterations=ITERATIONS, cg_tolerance=0.0, rest="adam")
    result = compare(step(model, ours), step(other, torch.optim.Adam(other.parameters(), lr=1e-4)), repeats=3)
    return [
        Line(
            what=f"CG-FAC, a training step with {ITERATIONS} iterations, batch {BATCH}",
            peer=f"Adam: {milliseconds(result.peer_seconds)}",
            ours=milliseconds(result.ours_seconds),
            value=1 / result.ratio,
            goal=GOAL,
            at_most=True,
            unit="× its time",
        )
    ]
