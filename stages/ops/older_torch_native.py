"""What the code asks of PyTorch and a release of some months ago hasn't: a machine with a GPU may have nothing newer.

Imported with every operator.  What a network computes is the same either way: like a fast path, this stands outside of
the code that a run's key names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn


def with_bias_option(initialise: Callable[..., None]) -> Callable[..., None]:
    """The constructor of a batch norm with the option `bias`, which 2.11 hasn't: False leaves the shift out."""

    @wraps(initialise)
    def wrapped(self: nn.Module, *arguments: Any, bias: bool = True, **options: Any) -> None:
        initialise(self, *arguments, **options)
        if not bias:
            self.register_parameter("bias", None)

    return wrapped


# `torch.compiler.assume_constant_result`, without importing the compiler: in 2.11 Dynamo can't trace this question, and
# every operator that asks it would break a graph in two.
torch.amp.is_autocast_available._dynamo_marked_constant = True  # type: ignore[attr-defined]  # a mark, not a member

if "bias" not in inspect.signature(nn.BatchNorm2d).parameters:
    for norm in (nn.BatchNorm1d, nn.BatchNorm2d):
        norm.__init__ = with_bias_option(norm.__init__)  # type: ignore[method-assign]  # replaced on purpose
