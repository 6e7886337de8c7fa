"""Dropout on a CPU with the draws of `torch.nn.Dropout`, bit by bit, in a tenth of its time (`dropout_native.cpp`).

PyTorch draws a number at a time there, which is 15 ns an element: 42 % of a training step of the MLP-Mixer.  Both read
and leave PyTorch's generator alike, so a run can't tell which of the two it had.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from stages.ops.native import call, load_library

_SOURCE = Path(__file__).with_suffix(".cpp")


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`: the same values, gradients and state of the generator afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        """[...] -> [...]."""
        if self.training and 0 < self.p < 1 and not self.inplace and _applies(x):
            return _Dropout.apply(x, self.p)
        return super().forward(x)


def with_fast_dropout(model: nn.Module) -> nn.Module:
    """`model`, whose dropout layers are `Dropout` now; parameters, buffers, hooks and state stay as they are."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = Dropout
    return model


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        out, kept = torch.empty_like(x), torch.empty_like(x, dtype=torch.uint8)
        # The reference multiplies with 1 / (1 - p), rounded to float32.
        ctx.scale = float(torch.ones(()).div(1 - p))
        state = torch.default_generator.get_state()
        threshold = math.ceil((1 - p) * 2**53)
        call(_SOURCE, "dropout_forward", x, out, kept, state, ctx.scale, threshold, x.numel())
        torch.default_generator.set_state(state)
        ctx.save_for_backward(kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        to_x = torch.empty_like(kept, dtype=grad.dtype)
        if grad.stride() != kept.stride():
            grad = torch.empty_like(to_x).copy_(grad)
        call(_SOURCE, "dropout_backward", grad, kept, to_x, ctx.scale, grad.numel())
        return to_x, None


def _applies(x: Tensor) -> bool:
    """float32 on a CPU without gaps in memory, outside compilers and transformations, where the draws are known."""
    return (
        x.dtype == torch.float32
        and x.device.type == "cpu"
        and type(x) in (Tensor, nn.Parameter)
        and not torch.compiler.is_compiling()
        and x.numel() > 0
        and _is_dense(x)
        and _draws_alike()
    )


def _is_dense(x: Tensor) -> bool:
    """Whether each place in its memory is one element: draws follow that order, whatever the dimensions' is."""
    if x.is_contiguous():
        return True
    return x.permute(sorted(range(x.ndim), key=x.stride, reverse=True)).is_contiguous()


@cache
def _draws_alike() -> bool:
    """Tried once: other builds of PyTorch may have another generator."""
    if load_library(_SOURCE) is None:
        return False
    state = torch.default_generator.get_state()
    try:
        found = []
        for draw in (_Dropout.apply, torch.nn.functional.dropout):
            torch.manual_seed(0)
            values = [draw(torch.ones(count), p) for count, p in ((1, 0.5), (311, 0.1), (2500, 0.7))]
            found.append(torch.cat([*values, torch.default_generator.get_state().float()]))
        return torch.equal(*found)
    finally:
        torch.default_generator.set_state(state)
