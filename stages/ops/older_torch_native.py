"""Features of PyTorch that the code needs and older releases lack: a machine with a GPU may have nothing newer.

Imported with every operator.  Networks compute the same either way: like a fast path, this is not part of the code that
a run key covers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn


def with_bias_option(initialise: Callable[..., None]) -> Callable[..., None]:
    """The constructor of a batch norm with the option `bias`, which came with 2.11: False leaves the shift out."""

    @wraps(initialise)
    def wrapped(self: nn.Module, *arguments: Any, bias: bool = True, **options: Any) -> None:
        initialise(self, *arguments, **options)
        if not bias:
            self.register_parameter("bias", None)

    return wrapped


# `torch.compiler.assume_constant_result`, without importing the compiler: in 2.11 Dynamo can't trace this call, and
# every operator that makes it would break a graph in two.
torch.amp.is_autocast_available._dynamo_marked_constant = True  # type: ignore[attr-defined]  # a mark, not a member

if "bias" not in inspect.signature(nn.BatchNorm2d).parameters:
    for norm in (nn.BatchNorm1d, nn.BatchNorm2d):
        norm.__init__ = with_bias_option(norm.__init__)  # type: ignore[method-assign]  # replaced on purpose
