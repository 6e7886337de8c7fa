"""Fast path of `stages.ops.dac`: float32 C++ on CPUs (`dac.cpp`).

Bfloat16 maps (from autocast) are widened first and their gradient is rounded.  Code from `torch.compile`
calls the same functions.  On other devices, or without a C++ compiler, the caller uses PyTorch's operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from stages.ops.fast.cpp import call, in_parts, is_plain, load_library

SOURCE = Path(__file__).with_suffix(".cpp")
_KERNELS = {(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (3, 3)}


def applies(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """True if `forward` and `backward` support these.  x: [B, m, H, W]; weight: [n, m, La, Lb]; bias: [n, m]."""
    is_known = tuple(weight.shape[2:]) in _KERNELS
    maps_are_plain = x.dtype in (torch.float32, torch.bfloat16) and is_plain(x, dtype=x.dtype, compiled=True)
    return is_known and maps_are_plain and is_plain(weight, bias, compiled=True) and is_available()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_available() -> bool:
    """True if the C++ library can be compiled and loaded."""
    return load_library(SOURCE) is not None


def forward(x: Tensor, weight: Tensor, bias: Tensor, before: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Compute `dac_taps`, [B, n, *size]; a dense layer's result has the memory layout of its samples."""
    sums = _forward_operator if torch.compiler.is_compiling() else _forward
    out: Tensor = sums(x, weight, bias, list(before), list(size))
    return out


def backward(
    x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor, before: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of x, weight and bias, given the result's gradient `grad` [B, n, H', W']."""
    sums = _backward_operator if torch.compiler.is_compiling() else _backward
    gradients: tuple[Tensor, Tensor, Tensor] = sums(x, weight, bias, grad, list(before))
    return gradients


def _forward(x: Tensor, weight: Tensor, bias: Tensor, before: list[int], size: list[int]) -> Tensor:
    is_rows = _is_rows(x, weight)
    x, weight, bias = _laid_out(x.float(), is_rows), weight.contiguous(), bias.contiguous()
    out = _empty(x, weight, size, is_rows)

    def work(part: slice) -> None:
        _call("dac_forward", [x[part], weight, bias, out[part]], weight, before, size, is_rows)

    in_parts(x.shape[0], work)
    return out


def _backward(
    x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor, before: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    is_rows, dtype = _is_rows(x, weight), x.dtype
    x, grad = _laid_out(x.float(), is_rows), _laid_out(grad, is_rows)
    weight, bias = weight.contiguous(), bias.contiguous()
    grad_x = torch.empty_like(x)
    sums: dict[int, tuple[Tensor, Tensor]] = {}

    def work(part: slice) -> None:
        sums[part.start] = to_weight, to_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        tensors = [x[part], weight, bias, grad[part], grad_x[part], to_weight, to_bias]
        _call("dac_backward", tensors, weight, before, (grad.shape[2], grad.shape[3]), is_rows)

    in_parts(x.shape[0], work)
    first, *others = [sums[start] for start in sorted(sums)]
    for to_weight, to_bias in others:
        first[0].add_(to_weight)
        first[1].add_(to_bias)
    return grad_x.to(dtype), *first


def _empty(x: Tensor, weight: Tensor, size: Sequence[int], is_rows: bool) -> Tensor:
    """Allocate the result."""
    shape = x.shape[0], weight.shape[0], *size
    return torch.empty(shape, dtype=torch.float32, device=x.device, memory_format=_format(is_rows))


def _is_rows(x: Tensor, weight: Tensor) -> bool:
    """True if these are a dense layer's samples, each contiguous; the kernel transposes them while reading."""
    return weight.shape[2:] == (1, 1) and x.shape[2] == 1 and x.permute(0, 2, 3, 1).is_contiguous()


def _laid_out(maps: Tensor, is_rows: bool) -> Tensor:
    return maps.contiguous(memory_format=_format(is_rows))


def _format(is_rows: bool) -> torch.memory_format:
    return torch.channels_last if is_rows else torch.contiguous_format


def _call(
    name: str, tensors: list[Tensor], weight: Tensor, before: Sequence[int], size: Sequence[int], is_rows: bool
) -> None:
    """Call kernel `name`; the first tensor is x, which defines the sizes."""
    images, inputs, height, width = tensors[0].shape
    sizes = (images, inputs, weight.shape[0], height, width, *before, *size, is_rows)
    status = call(SOURCE, name, *tensors, sizes, *weight.shape[2:])
    assert status == 0, f"no kernel of {[*weight.shape[2:]]}; `applies` lists them"


# Under `torch.compile` these functions are opaque operators.  Eager code calls them directly, because their dispatch
# would take longer than a small layer.
_forward_operator = torch.library.custom_op("claimcheck::dac_cpu_forward", _forward, mutates_args=())
_backward_operator = torch.library.custom_op("claimcheck::dac_cpu_backward", _backward, mutates_args=())


@_forward_operator.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, before: list[int], size: list[int]) -> Tensor:
    return _empty(x, weight, size, _is_rows(x, weight))


@_backward_operator.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor, before: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    to_x = _laid_out(torch.empty_like(x), _is_rows(x, weight))
    return to_x, torch.empty_like(weight.contiguous()), torch.empty_like(bias.contiguous())
