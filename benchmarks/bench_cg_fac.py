"""Goal: on a CPU, a training step of CG-FAC with m = 10 takes at most 6 times a fused Adam's, eager or compiled.

Uses the ViT of the CIFAR experiment (width 256, 4 blocks) in float32 with CG-FAC on its attention layers and Adam
elsewhere. A tolerance of 0 makes every solve take all ten iterations. A step is forward, backward and update.
Run: python -m benchmarks cg_fac
"""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.timing import Line, race, training_step
from stages.optim.cg_fac import CGFAC
from stages.papers.brownian.vit import ViT

GOAL, BATCH, ITERATIONS = 6.0, 16, 10


def build() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"image_size": 32, "in_channels": 3, "num_classes": 10, "patch_size": 4, "dim": 256, "depth": 4}
    return ViT(**sizes, num_heads=4, mlp_dim=512)


def measure() -> list[Line]:
    model = build()
    ours = CGFAC(model, lr=1e-4, cg_iterations=ITERATIONS, cg_tolerance=0.0, rest="adam")
    peers = {}
    for way in ("eager", "compiled"):
        other = build()
        adam = torch.optim.Adam(other.parameters(), lr=1e-4, fused=True)
        forward = torch.compile(other) if way == "compiled" else other
        peers[f"fused Adam, {way}"] = training_step(forward, adam, batch=BATCH)
    result = race({"ours": training_step(model, ours, batch=BATCH)}, peers, rounds=5)
    return [result.cost(f"CG-FAC, a training step with {ITERATIONS} iterations, batch {BATCH}", GOAL)]
