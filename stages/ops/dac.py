"""Dendrite-activated connections: a bias for each pair of output and input    (Metta et al. 2024, eqs. 4 and 5).

    f_i(z)     = Σ_j w_ij φ(b_ij + z_j)                              (4)  dense
    f_hki(z)   = Σ_ab Σ_j w_abij φ(b_ij + z_(h+a)(k+b)j)             (5)  convolution
    f_hki(z)   = Σ_ab Σ_j w_abij φ(b_abij + z_(h+a)(k+b)j)                fully unshared (section 4)

φ is ReLU.  The connection activates its own input, so it replaces both activation and linear layer, and the layer
before it outputs its sums unchanged.  It has no bias on its output.  The convolution activates first and then pads
with zeros, so positions outside the image add 0, just like in a network that activates after each layer.

Activated maps are recomputed in each pass instead of stored:

    u_t(p)  = Σ_j w_tij φ(b_ij + z_pj)        one small matrix product per output channel i, all kernel positions t
    f_i(h)  = Σ_t u_t(h + t - before)         shift and add; positions outside the image add 0
    ∂E/∂w   = Σ_p φ(b_ij + z_pj) G_ti(p)      G_ti: the output's gradient g_i, shifted back by t
    ∂E/∂b   = Σ_p a_ij(p),   ∂E/∂z_pj = Σ_i a_ij(p),   a_ij(p) = φ'(b_ij + z_pj) Σ_t w_tij G_ti(p)        (eq. 7)

`stages.ops.fast.dac` is faster if it supports the operands.  At b_ij + z_pj = 0 the derivative φ' is 0, as in PyTorch.
B batch, m inputs or input channels, n outputs or output channels, c of them at a time, H height, W width, L kernel
size, T = L x L kernel positions, P = H x W input positions, h and k output positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from stages.ops.fast import dac as fast
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
        if fast.applies(x, weight, bias):
            return fast.forward(x, weight, bias, before, size)
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
        if fast.applies(x, weight, bias):
            return *fast.backward(x, weight, bias, grad, ctx.before), None, None
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


Size = int | tuple[int, int]


def dac_linear_reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Equation 4 as printed.  x: [..., m]; weight, bias: [n, m]; returns [..., n]."""
    z, w, b = x.unsqueeze(-2), weight, bias
    return (w * (b + z).relu()).sum(-1)


def dac_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`dac_linear_reference` without its [..., n, m] intermediate.

    Raises:
        ValueError: weight and bias differ in shape, or don't match the last axis of x.
    """
    if weight.ndim != 2 or weight.shape != bias.shape or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"x, weight, bias have shapes {[*x.shape]}, {[*weight.shape]}, {[*bias.shape]}; "
            "expected [..., m], [n, m], [n, m]"
        )
    # A dense layer is a 1 x 1 convolution over one image, whose single row of pixels are the samples.
    pixels = x.reshape(1, 1, -1, x.shape[-1]).permute(0, 3, 1, 2)
    f = dac_taps(pixels, weight[..., None, None], bias, (0, 0), (1, pixels.shape[3]))
    return f.permute(0, 2, 3, 1).reshape(*x.shape[:-1], weight.shape[0])


def dac_conv2d_reference(x: Tensor, weight: Tensor, bias: Tensor, stride: Size = 1, padding: Size = 0) -> Tensor:
    """Equation 5 as printed: a sum over kernel positions a, b and input channels j of activated, shifted maps.

    x: [B, m, H, W]; weight: [n, m, L, L]; bias: [n, m], or [n, m, L, L] fully unshared; returns [B, n, H', W'].
    """
    (down, right), (top, left) = _pair(stride), _pair(padding)
    height, width = _output_size(x, weight, stride, padding)
    f = torch.zeros((), dtype=x.dtype, device=x.device)
    for a in range(weight.shape[2]):
        for b in range(weight.shape[3]):
            bias_ab = bias if bias.ndim == 2 else bias[:, :, a, b]
            y = (bias_ab[:, :, None, None] + x.unsqueeze(1)).relu()  # [B, n, m, H, W]
            y = F.pad(y, (left, left, top, top))
            y = y[..., a : a + down * (height - 1) + 1 : down, b : b + right * (width - 1) + 1 : right]
            f = f + (weight[:, :, a, b, None, None] * y).sum(2)
    return f


def dac_conv2d(x: Tensor, weight: Tensor, bias: Tensor, stride: Size = 1, padding: Size = 0) -> Tensor:
    """`dac_conv2d_reference` without its [B, n, m, H, W] intermediate.

    A convolution with stride s is the sum of s x s convolutions without stride, one for each subsampled image: pixel r
    meets only the kernel positions a with a - padding ≡ r (mod s).

    Raises:
        ValueError: shapes don't match, or the kernel doesn't fit the padded image.
    """
    _check_conv(x, weight, bias)
    (down, right), (top, left) = _pair(stride), _pair(padding)
    size = _output_size(x, weight, stride, padding)
    parts = []
    for row in range(down):
        for column in range(right):
            a, b = (row + top) % down, (column + left) % right
            taps = weight[:, :, a::down, b::right]
            if taps.numel() == 0 or row >= x.shape[2] or column >= x.shape[3]:
                continue
            tap_bias = bias if bias.ndim == 2 else bias[:, :, a::down, b::right]
            before = ((top + row - a) // down, (left + column - b) // right)
            parts.append(dac_taps(x[:, :, row::down, column::right], taps, tap_bias, before, size))
    if not parts:  # every kernel position meets only padding
        return x.new_zeros(x.shape[0], weight.shape[0], *size)
    return reduce(torch.add, parts)


def _pair(size: Size) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


def _output_size(x: Tensor, weight: Tensor, stride: Size, padding: Size) -> tuple[int, int]:
    (down, right), (top, left) = _pair(stride), _pair(padding)
    height = (x.shape[2] + 2 * top - weight.shape[2]) // down + 1
    width = (x.shape[3] + 2 * left - weight.shape[3]) // right + 1
    if height < 1 or width < 1:
        raise ValueError(
            f"kernel {[*weight.shape[2:]]} doesn't fit an image of {[*x.shape[2:]]} with padding {(top, left)}"
        )
    return height, width


def _check_conv(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    fits = x.ndim == weight.ndim == 4 and x.shape[1] == weight.shape[1]
    if not fits or bias.shape not in (weight.shape[:2], weight.shape):
        raise ValueError(
            f"x, weight, bias have shapes {[*x.shape]}, {[*weight.shape]}, {[*bias.shape]}; "
            "expected [B, m, H, W], [n, m, L, L] and [n, m] or [n, m, L, L]"
        )


class DACLinear(nn.Module):
    """Equation 4 in place of ReLU and `nn.Linear`.  [..., in_features] -> [..., out_features].

    Weights are He normal, biases zero (section 5): until the first step it equals ReLU followed by a linear layer.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return dac_linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


class DACConv2d(nn.Module):
    """Equation 5 in place of ReLU and `nn.Conv2d`.  [B, in_channels, H, W] -> [B, out_channels, H', W'].

    Weights are He normal, biases zero (section 5).  `is_fully_unshared` gives every weight its own bias.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        is_fully_unshared: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.padding = _pair(kernel_size), _pair(stride), _pair(padding)
        self.is_fully_unshared = is_fully_unshared
        shape = (out_channels, in_channels, *self.kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        bias_shape = shape if is_fully_unshared else shape[:2]
        self.bias = nn.Parameter(torch.empty(bias_shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return dac_conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def extra_repr(self) -> str:
        sizes = f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"
        return f"{self.in_channels}, {self.out_channels}, {sizes}, is_fully_unshared={self.is_fully_unshared}"
