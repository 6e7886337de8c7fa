"""CPU dropout, bit-identical to `torch.nn.Dropout` in a tenth of its time (`dropout.cpp`).

PyTorch draws one number at a time, at 15 ns per element: 42 % of a training step of the MLP-Mixer.  Both advance
PyTorch's generator in the same way, so results don't depend on which of them ran.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stages.ops.fast.cpp import agrees_here, all_numbers, call, is_plain, load_library

_SOURCE = Path(__file__).with_suffix(".cpp")
_NAMES = {torch.float32: "dropout_{}", torch.bfloat16: "dropout_{}_half"}


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` with the same values, gradients and final generator state."""

    def forward(self, x: Tensor) -> Tensor:
        """[...] -> [...]."""
        if self.training and 0 < self.p < 1 and not self.inplace and _applies(x):
            return _Dropout.apply(x, self.p)
        return super().forward(x)


def with_fast_dropout(model: nn.Module) -> nn.Module:
    """Change the class of each `torch.nn.Dropout` in `model`; names, hooks and state stay as they are."""
    for module in model.modules():
        if type(module) is nn.Dropout:  # a subclass may do something else
            module.__class__ = Dropout
    return model


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        out, kept = torch.empty_like(x), torch.empty_like(x, dtype=torch.uint8)
        ctx.scale = _scale(p, x.dtype)
        state = torch.default_generator.get_state()
        name, threshold = _NAMES[x.dtype].format("forward"), math.ceil((1 - p) * 2**53)
        call(_SOURCE, name, x, out, kept, state, ctx.scale, threshold, x.numel())
        torch.default_generator.set_state(state)
        ctx.save_for_backward(kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        if torch.is_grad_enabled() or grad.stride() != kept.stride() or not _is_plain(grad):
            # As in the reference: the layout of the result determines the order of later sums.
            return grad * kept.to(grad.dtype).mul_(ctx.scale), None
        to_x = torch.empty_like(kept, dtype=grad.dtype)
        call(_SOURCE, _NAMES[grad.dtype].format("backward"), grad, kept, to_x, ctx.scale, grad.numel())
        return to_x, None


def _scale(p: float, dtype: torch.dtype) -> float:
    """Return 1 / (1 - p), rounded like the reference."""
    return float(torch.ones((), dtype=dtype, device="cpu").div(1 - p))


def _applies(x: Tensor) -> bool:
    """True if the C++ code supports x: it has no gaps in memory, and the draws agree with PyTorch's."""
    return _is_plain(x) and _is_dense(x) and _draws_alike(x.dtype)


def _is_plain(x: Tensor) -> bool:
    return x.dtype in _NAMES and is_plain(x, dtype=x.dtype)


def _is_dense(x: Tensor) -> bool:
    """True if x has no gaps or overlaps in memory: draws follow memory order, whatever the order of dimensions."""
    if x.is_contiguous():
        return True
    return x.permute(sorted(range(x.ndim), key=x.stride, reverse=True)).is_contiguous()


def _draws_alike(dtype: torch.dtype) -> bool:
    """True if the draws agree; other builds of PyTorch may have another generator."""
    if load_library(_SOURCE) is None:
        return False
    claim = f"dropout in {str(dtype).removeprefix('torch.')}"
    plain = torch.nn.functional.dropout
    return agrees_here(claim, lambda: _drawn(_Dropout.apply, dtype), lambda: _drawn(plain, dtype))


def _drawn(way: Callable[[Tensor, float], Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return values, gradients and the generator's final state, for all numbers and for partial blocks."""
    state = torch.default_generator.get_state()
    try:
        torch.default_generator.manual_seed(0)
        found = []
        for count, p in ((1, 0.5), (311, 0.1), (1 << 16, 0.7)):
            x = all_numbers()[-count:].to(dtype).requires_grad_()
            out = way(x, p)
            found += [out, *torch.autograd.grad(out, x, x.detach().flip(0))]
        return [*found, torch.default_generator.get_state()]
    finally:
        torch.default_generator.set_state(state)
