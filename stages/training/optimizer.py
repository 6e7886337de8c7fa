"""Build optimisers by name: PyTorch's own here, any other by the module of that name in `stages.optim`."""

from __future__ import annotations

from importlib import import_module

import torch
from torch import nn

from stages.run import OptimizerSpec


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
