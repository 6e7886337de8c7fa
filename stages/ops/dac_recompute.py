"""Equations 4 and 5, with activated maps recomputed in each pass instead of stored.

    u_t(p)  = Σ_j w_tij φ(b_ij + z_pj)        one small matrix product per output channel i, all kernel positions t
    f_i(h)  = Σ_t u_t(h + t - before)         shift and add; positions outside the image add 0
    ∂E/∂w   = Σ_p φ(b_ij + z_pj) G_ti(p)      G_ti: the output's gradient g_i, shifted back by t
    ∂E/∂b   = Σ_p a_ij(p),   ∂E/∂z_pj = Σ_i a_ij(p),   a_ij(p) = φ'(b_ij + z_pj) Σ_t w_tij G_ti(p)        (eq. 7)

`stages.ops.fast.dac` is faster if it supports the operands.  At b_ij + z_pj = 0 the derivative φ' is 0, as in PyTorch.
B batch, m input channels, n output channels, c of them at a time, T = L x L kernel positions, P = H x W input
positions, h and k output positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from stages.ops.fast import dac
from stages.ops.precision import has_autocast

# Elements of activated maps in memory at a time: about the size of a core's cache.
_BLOCK = 2**20


def dac_taps(x: Tensor, weight: Tensor, bias: Tensor, before: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """f(h, k) = Σ_ab Σ_j w_abij φ(b + z(h + a - before[0], k + b - before[1])_j), on a grid of `size`.

    x: [B, m, H, W]; weight: [n, m, La, Lb]; bias: [n, m], or [n, m, La, Lb] for one per kernel position.  Computes at
    least in float32; under autocast, the result is cast to its dtype.
    """
    if bias.ndim == 4:  # every kernel position is its own 1 x 1 connection
        positions = [(a, b) for a in range(weight.shape[2]) for b in range(weight.shape[3])]
        parts = [
            dac_taps(x, weight[:, :, a, b, None, None], bias[:, :, a, b], (before[0] - a, before[1] - b), size)
            for a, b in positions
        ]
        return reduce(torch.add, parts)
    device = x.device.type
    if has_autocast(device) and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return _Taps.apply(x, weight, bias, before, size).to(torch.get_autocast_dtype(device))
    return _Taps.apply(x, weight, bias, before, size)


class _Taps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, before: tuple[int, int], size: tuple[int, int]
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.before = before
        if dac.applies(x, weight, bias):
            return dac.forward(x, weight, bias, before, size)
        dtype = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), bias.dtype)
        out = x.new_empty(x.shape[0], weight.shape[0], *size, dtype=dtype)
        for i, activated, taps in _blocks(x, weight, bias):
            u = taps.transpose(1, 2) @ activated  # [B, c, T, P]
            u = u.unflatten(2, weight.shape[2:]).unflatten(4, x.shape[2:])
            out[:, i] = _shift_and_add(u, before, size)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, bias = ctx.saved_tensors
        if dac.applies(x, weight, bias):
            return *dac.backward(x, weight, bias, grad, ctx.before), None, None
        grad_x = torch.zeros_like(x, dtype=_work_dtype(x))
        grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(bias)
        for i, activated, taps in _blocks(x, weight, bias):
            g = _shift_back(grad[:, i].to(activated.dtype), weight.shape[2:], ctx.before, x.shape[2:])  # [B, c, T, P]
            grad_weight[i] = (activated @ g.transpose(2, 3)).sum(0).view_as(grad_weight[i])
            grad_sum = (taps @ g).mul_(activated > 0)  # [B, c, m, P]
            grad_bias[i] = grad_sum.sum((0, 3))
            grad_x += grad_sum.sum(1).view_as(x)
        return grad_x.to(x.dtype), grad_weight, grad_bias, None, None


def _work_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _blocks(x: Tensor, weight: Tensor, bias: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield blocks of output channels: indices, activated maps [B, c, m, P], weights [c, m, T]."""
    dtype = _work_dtype(x)
    pixels = x.to(dtype).flatten(2).unsqueeze(1)
    step = max(1, _BLOCK // max(1, x.numel()))
    for start in range(0, weight.shape[0], step):
        i = slice(start, start + step)
        yield i, (bias[i, :, None].to(dtype) + pixels).relu_(), weight[i].to(dtype).flatten(2)


def _padding(kernel: tuple[int, ...], before: tuple[int, int], size: tuple[int, int], grid: torch.Size) -> list[int]:
    """Return `F.pad` arguments that extend the input grid to all positions that kernels meet; negative ones crop."""
    after = [size[axis] + kernel[axis] - 1 - before[axis] - grid[axis] for axis in (0, 1)]
    return [before[1], after[1], before[0], after[0]]


def _shift_and_add(u: Tensor, before: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Sum the maps of all kernel positions, shifted.  u: [B, c, La, Lb, H, W]; returns [B, c, *size]."""
    kernel = (u.shape[2], u.shape[3])
    u = F.pad(u, _padding(kernel, before, size, u.shape[4:]))
    f = u.new_zeros(*u.shape[:2], *size)
    for a in range(kernel[0]):
        for b in range(kernel[1]):
            f += u[:, :, a, b, a : a + size[0], b : b + size[1]]
    return f


def _shift_back(g: Tensor, kernel: torch.Size, before: tuple[int, int], grid: torch.Size) -> Tensor:
    """Apply the adjoint of `_shift_and_add`.  g: [B, c, *size]; returns [B, c, T, P]."""
    size = (g.shape[2], g.shape[3])
    padding = _padding(tuple(kernel), before, size, grid)
    shifted = g.new_zeros(*g.shape[:2], *kernel, size[0] + kernel[0] - 1, size[1] + kernel[1] - 1)
    for a in range(kernel[0]):
        for b in range(kernel[1]):
            shifted[:, :, a, b, a : a + size[0], b : b + size[1]] = g
    return F.pad(shifted, [-cut for cut in padding]).flatten(4).flatten(2, 3)
