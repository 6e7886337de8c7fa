"""An optimiser of PyTorch, of another package or of a user's own file; and clipped gradients for any of these."""

from __future__ import annotations

from importlib import import_module
from inspect import isclass, signature
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_


def build(model: nn.Module, spec: Any) -> torch.optim.Optimizer:
    """`module:name`, the `address` of an `OptimizerSpec`, with its learning rate, weight decay and own arguments.

    `clip_norm`: before each step, all gradients are scaled down together to at most this norm.
    """
    module, _, name = spec.address.partition(":")
    make, limit = getattr(import_module(module), name), spec.clip_norm
    is_optimizer = isclass(make) and issubclass(make, torch.optim.Optimizer)
    if not is_optimizer:
        raise ValueError(f"{spec.address} is no torch.optim.Optimizer")
    takes_decay = "weight_decay" in signature(make).parameters
    decay = {"weight_decay": spec.weight_decay} if takes_decay else {}
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for path, parameter in model.named_parameters():
        is_kernel = path.rpartition(".")[2] == "weight" and parameter.ndim >= 2
        groups[is_kernel or spec.decay != "kernels"].append(parameter)
    parts = [{"params": groups[True], **decay}]
    if groups[False]:
        parts.append({"params": groups[False], "weight_decay": 0.0})
    optimizer: torch.optim.Optimizer = make(parts, lr=spec.lr, **decay, **(spec.arguments or {}))

    def clip(*_: object) -> None:
        clip_grad_norm_(model.parameters(), limit)

    if limit is not None:
        optimizer.register_step_pre_hook(clip)
    return optimizer
