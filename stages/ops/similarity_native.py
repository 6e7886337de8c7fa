"""Fast paths of `yat` and `rbf` on a CPU, in float32: the arithmetic around their products, in C++
(`similarity_native.cpp`).

Each function returns None if it can't be used: another device or type, no compiler, or under torch's own compiler.  The
caller then does the same with PyTorch's operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stages.ops.native import call, is_plain, load_library

SOURCE = Path(__file__).with_suffix(".cpp")
Factor = Tensor | float


def yat_ratio(
    dot: Tensor, row: Tensor, column: Tensor, scale: Factor, epsilon: Factor, bias: Tensor | None, is_row_bias: bool
) -> Tensor | None:
    """The ratio s (dot + bias)² / (max(row + column − 2 dot, 0) + ε).

    dot: [R, L]; row: [N], for N successive rows, R / N times; column: [C, L], each for R / C successive rows; bias: [N]
    or [L].
    """
    scale, epsilon = as_tensor(scale, dot), as_tensor(epsilon, dot)
    if not applies(dot, row, column, scale, epsilon, *([] if bias is None else [bias])):
        return None
    return _YatRatio.apply(dot, row, column, scale, epsilon, bias, is_row_bias)


def yat_linear(x: Tensor, weight: Tensor, bias: Tensor | None, scale: Factor, epsilon: Factor) -> Tensor | None:
    """`yat_ratio` of samples and units.  x: [R, D]; weight: [L, D]; bias: [L]; returns [R, L]."""
    scale, epsilon = as_tensor(scale, x), as_tensor(epsilon, x)
    if not applies(x, weight, scale, epsilon, *([] if bias is None else [bias])):
        return None
    return _YatLinear.apply(x, weight, bias, scale, epsilon)


def patch_norms(
    x: Tensor, kernel_size: Sequence[int], stride: Sequence[int], pads: Sequence[int], dilation: Sequence[int]
) -> Tensor | None:
    """Sum of squares of the patch at each position.  x: [B, C, H, W]; returns [B, 1, H', W'].

    `pads` are zeros left, right, above and below, as `F.pad` has them.
    """
    if not applies(x) or min(pads) < 0:
        return None
    befores, behinds = (pads[2], pads[0]), (pads[3], pads[1])
    rows, columns = zip(kernel_size, stride, dilation, befores, behinds, strict=True)  # `Window` in C++
    places = [
        (length + before + behind - gap * (size - 1) - 1) // step + 1
        for length, (size, step, gap, before, behind) in zip(x.shape[2:], (rows, columns), strict=True)
    ]
    return _PatchNorms.apply(x, [*places, *rows, *columns])


def gaussian(dot: Tensor, row: Tensor, column: Tensor, beta: Factor) -> Tensor | None:
    """exp(−β (row + column − 2 dot)).  dot: [R, L]; row: [R]; column: [L]; beta: [L] or a number."""
    beta = as_tensor(beta, dot)
    if not applies(dot, row, column, beta):
        return None
    return _Gaussian.apply(dot, row, column, beta.expand(column.shape))


def gaussian_linear(x: Tensor, centers: Tensor, beta: Factor) -> Tensor | None:
    """`gaussian` of samples and centres.  x: [R, D]; centers: [L, D]; beta: [L] or a number; returns [R, L]."""
    beta = as_tensor(beta, x)
    if not applies(x, centers, beta):
        return None
    return _GaussianLinear.apply(x, centers, beta.expand(len(centers)))


class _YatRatio(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        dot: Tensor,
        row: Tensor,
        column: Tensor,
        scale: Tensor,
        epsilon: Tensor,
        bias: Tensor | None,
        is_row_bias: bool,
    ) -> Tensor:
        dot, row, column = dot.contiguous(), row.contiguous(), column.contiguous()
        bias = None if bias is None else bias.contiguous()
        ctx.save_for_backward(dot, row, column, scale, epsilon, bias)
        ctx.is_row_bias = is_row_bias
        return _yat(dot, row, column, scale, epsilon, bias, is_row_bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_yat_gradients(grad, ctx.saved_tensors, ctx.is_row_bias), None


class _YatLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor, epsilon: Tensor) -> Tensor:
        bias = None if bias is None else bias.contiguous()
        dot, row, column = x @ weight.mT, _squared_norms(x), _squared_norms(weight)[None]
        ctx.save_for_backward(x, weight, dot, row, column, scale, epsilon, bias)
        return _yat(dot, row, column, scale, epsilon, bias, is_row_bias=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *saved = ctx.saved_tensors
        to_dot, to_row, to_column, to_scale, to_epsilon, to_bias = _yat_gradients(grad, saved, is_row_bias=False)
        to_x, to_weight = _linear_gradients(x, weight, to_dot, to_row, to_column[0])
        return to_x, to_weight, to_bias, to_scale, to_epsilon


def _yat(
    dot: Tensor, row: Tensor, column: Tensor, scale: Tensor, epsilon: Tensor, bias: Tensor | None, is_row_bias: bool
) -> Tensor:
    out = torch.empty_like(dot)
    biases = (bias, None) if is_row_bias else (None, bias)
    _call("yat_forward", dot, row, column, *biases, out, scale.item(), epsilon.item(), *_sizes(dot, row, column))
    return out


def _yat_gradients(
    grad: Tensor, saved: Sequence[Any], is_row_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of dot, row, column, scale, epsilon and bias, the six in `saved`."""
    dot, row, column, scale, epsilon, bias = saved
    to_dot, to_row, to_column = torch.empty_like(dot), torch.zeros_like(row), torch.zeros_like(column)
    to_bias = None if bias is None else torch.zeros_like(bias)
    totals = torch.zeros(2, dtype=torch.float64)
    biases, to_biases = ((bias, None), (to_bias, None)) if is_row_bias else ((None, bias), (None, to_bias))
    tensors = (dot, row, column, *biases, grad.contiguous(), to_dot, to_row, to_column, *to_biases, totals)
    _call("yat_backward", *tensors, scale.item(), epsilon.item(), *_sizes(dot, row, column))
    to_scale, to_epsilon = totals.to(dot.dtype)
    return to_dot, to_row, to_column, to_scale, to_epsilon, to_bias


class _PatchNorms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, windows: list[int]) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        ctx.shape = [*x.shape, *windows]
        out = x.new_empty(len(x), 1, *windows[:2])
        _call("patch_norms_forward", x, out, ctx.shape)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        to_x = torch.empty_like(x)
        _call("patch_norms_backward", x, grad.contiguous(), to_x, ctx.shape)
        return to_x, None


class _Gaussian(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dot: Tensor, row: Tensor, column: Tensor, beta: Tensor) -> Tensor:
        saved = dot.contiguous(), row.contiguous(), column.contiguous(), beta.contiguous()
        out = _gaussian(*saved)
        ctx.save_for_backward(*saved, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return _gaussian_gradients(grad, ctx.saved_tensors)


class _GaussianLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, centers: Tensor, beta: Tensor) -> Tensor:
        saved = x @ centers.mT, _squared_norms(x), _squared_norms(centers), beta.contiguous()
        out = _gaussian(*saved)
        ctx.save_for_backward(x, centers, *saved, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, centers, *saved = ctx.saved_tensors
        to_dot, to_row, to_column, to_beta = _gaussian_gradients(grad, saved)
        return *_linear_gradients(x, centers, to_dot, to_row, to_column), to_beta


def _squared_norms(x: Tensor) -> Tensor:
    """‖x‖² of each row."""
    out = x.new_empty(len(x))
    _call("squared_norms", x.contiguous(), out, *x.shape)
    return out


def _linear_gradients(
    x: Tensor, weight: Tensor, to_dot: Tensor, to_row: Tensor, to_column: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x and weight, from those of their inner products [R, L] and of their squared norms [R] and [L]."""
    to_x = (to_dot @ weight).addcmul_(x, to_row[:, None], value=2)
    return to_x, (to_dot.mT @ x).addcmul_(weight, to_column[:, None], value=2)


def _gaussian(dot: Tensor, row: Tensor, column: Tensor, beta: Tensor) -> Tensor:
    out = torch.empty_like(dot)
    _call("gaussian_forward", dot, row, column, beta, out, *dot.shape)
    return out


def _gaussian_gradients(grad: Tensor, saved: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of dot, row, column and beta, the first four in `saved`; the last is the result."""
    dot, row, column, beta, _ = saved
    to_dot, to_row = torch.empty_like(dot), torch.empty_like(row)
    to_column, to_beta = torch.zeros_like(column), torch.zeros_like(beta)
    _call("gaussian_backward", *saved, grad.contiguous(), to_dot, to_row, to_column, to_beta, *dot.shape)
    return to_dot, to_row, to_column, to_beta


def _sizes(dot: Tensor, row: Tensor, column: Tensor) -> tuple[int, int, int, int]:
    return *dot.shape, len(dot) // len(column), len(row)


def as_tensor(factor: Factor, like: Tensor) -> Tensor:
    """A number as float32 on the device of `like`."""
    return factor if isinstance(factor, Tensor) else torch.full((), factor, dtype=torch.float32, device=like.device)


def applies(*tensors: Tensor) -> bool:
    """True if the sums in C++ can handle these: float32 on a CPU, outside compilers and transformations."""
    return is_plain(*tensors) and load_library(SOURCE) is not None


def _call(name: str, *arguments: Tensor | float | Sequence[int] | None) -> None:
    call(SOURCE, name, *arguments)
