"""What a protocol asks of a training: its rows, seeds, optimiser, learning rates and early stopping.

The optimiser is PyTorch's own or, by the module of that name, one of `stages.optim`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from stages.run import EarlyStopSpec, OptimizerSpec, Protocol, Replicate, ScheduleSpec, SplitSpec


def split_indices(n: int, split: SplitSpec, fold: int | None) -> tuple[Tensor, Tensor]:
    """Return (train, validation) rows of n, int64, disjoint and together all of them; no validation for `none`.

    Raises:
        ValueError: the split's numbers contradict each other.
    """
    if split.kind == "none":
        return torch.arange(n), torch.empty(0, dtype=torch.int64)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(split.seed))
    if split.kind == "fraction":
        if split.fraction is None or not 0 < split.fraction < 1:
            raise ValueError(f"split.fraction is {split.fraction}; expected a number between 0 and 1")
        held_out = round(n * split.fraction)
        return order[held_out:].sort().values, order[:held_out].sort().values
    if split.folds is None or split.folds < 2 or fold is None or not 0 <= fold < split.folds:
        raise ValueError(f"split.folds is {split.folds} and the fold {fold}; expected 0 <= fold < folds, folds >= 2")
    parts = order.tensor_split(split.folds)
    rest = torch.cat([part for index, part in enumerate(parts) if index != fold])
    return rest.sort().values, parts[fold].sort().values


def training_rows(n: int, protocol: Protocol, replicate: Replicate) -> tuple[Tensor, Tensor]:
    """Return (train, validation) rows under `protocol`; `train_images` keeps a fixed random part of the former."""
    train, validation = split_indices(n, protocol.split, replicate.fold)
    if protocol.train_images is not None and protocol.train_images < len(train):
        chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(protocol.split.seed))
        train = train[chosen[: protocol.train_images].sort().values]
    return train, validation


def derive_seed(replicate: Replicate, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose of one replicate, e.g. `derive_seed(r, "augment", epoch, step)`."""
    text = "/".join(str(part) for part in (replicate.seed, replicate.fold, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


CPU = torch.device("cpu")


def generator_for(replicate: Replicate, *purpose: str | int, device: torch.device = CPU) -> torch.Generator:
    """Return a generator for one purpose; the CPU's draws the same numbers whatever device the training runs on."""
    return torch.Generator(device).manual_seed(derive_seed(replicate, *purpose))


def build_optimizer(model: nn.Module, spec: OptimizerSpec, *, fused: bool = False) -> torch.optim.Optimizer:
    """Build the spec's optimiser; `adam` adds weight decay to the gradient (L2), `adamw` decouples it.

    `fused` makes PyTorch's optimisers update all parameters in one kernel, which is faster and rounds differently;
    those of `stages.optim` ignore it.
    """
    groups, in_one_kernel = parameter_groups(model, spec), fused or None  # None: PyTorch's default
    if spec.name == "sgd":
        return torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum, fused=in_one_kernel)
    if spec.name in ("adam", "adamw"):
        kind = torch.optim.AdamW if spec.name == "adamw" else torch.optim.Adam
        return kind(groups, lr=spec.lr, betas=spec.betas, fused=in_one_kernel)
    return import_module(f"stages.optim.{spec.name}").build(model, spec)


def parameter_groups(model: nn.Module, spec: OptimizerSpec) -> list[dict[str, object]]:
    """Return all parameters in one group, or in two if only kernels decay: matrices and filters called `weight`."""
    if spec.decay != "kernels":
        return [{"params": list(model.parameters()), "weight_decay": spec.weight_decay}]
    kernels: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_kernel = name.rpartition(".")[2] == "weight" and parameter.ndim >= 2
        (kernels if is_kernel else others).append(parameter)
    return [{"params": kernels, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}]


def learning_rate(spec: ScheduleSpec, base: float, step: int, total_steps: int) -> float:
    """Return the rate of step `step` (0-based) of `total_steps`.

    All schedules rise linearly over the first `warmup_steps`, if any.  After these: `constant` stays; `cosine` falls to
    `floor` times the base at the end; `steps` multiplies by `factor` at each of `milestones`, which are fractions of
    the run in (0, 1).
    """
    warmup = spec.warmup_steps or 0
    if step < warmup:
        return base * (step + 1) / warmup
    if spec.name == "cosine":
        floor = spec.floor or 0.0
        progress = (step - warmup) / max(total_steps - warmup, 1)
        return base * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))
    if spec.name == "steps":
        assert spec.milestones is not None and spec.factor is not None, "checked when the params are read"
        return base * spec.factor ** sum(step >= part * total_steps for part in spec.milestones)
    return base


def stops_early(history: Sequence[Mapping[str, Any]], spec: EarlyStopSpec | None) -> bool:
    """Return whether a training with these finished epochs is over."""
    if spec is None:
        return False
    best, waited = float("inf"), 0
    for row in history[spec.from_epoch :]:
        if row["val_loss"] < best - spec.min_delta:
            best, waited = row["val_loss"], 0
        else:
            waited += 1
    return waited >= spec.patience
