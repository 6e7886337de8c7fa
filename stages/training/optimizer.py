"""Optimisers by name, and the learning rate over a run's steps."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from stages.run import OptimizerSpec, ScheduleSpec


def build_optimizer(parameters: Iterable[nn.Parameter], spec: OptimizerSpec) -> torch.optim.Optimizer:
    """The optimiser of the spec; `adam` adds its weight decay to the gradient (L2), `adamw` decouples it."""
    if spec.name == "sgd":
        return torch.optim.SGD(parameters, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay)
    kind = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
    return kind(parameters, lr=spec.lr, betas=spec.betas, weight_decay=spec.weight_decay)


def learning_rate(spec: ScheduleSpec, base: float, step: int, total_steps: int) -> float:
    """The rate of step `step` (0-based) of `total_steps`; `cosine` falls to 0 at the end."""
    if spec.name == "constant":
        return base
    return base * 0.5 * (1 + math.cos(math.pi * step / total_steps))
