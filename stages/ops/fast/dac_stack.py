"""DAC's dense layer for M networks at once, each with its own weights (`dac.cpp`).

These are PyTorch operators so that compiled code can call them.
M networks, I inputs, U units, B batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stages.ops.fast.cpp import call, in_parts, load_library, require_single
from stages.ops.fast.dac import SOURCE


def is_available() -> bool:
    """True if the C++ library can be compiled and loaded."""
    return load_library(SOURCE) is not None


@torch.library.custom_op("claimcheck::dac_stack", mutates_args=(), device_types="cpu")
def dac_stack(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Equation 4 of the DAC paper for each network, float32 on a CPU; has no second derivatives.

    x: [M, I, B]; weight, bias: [M, U, I]; returns [M, U, B].

    Raises:
        TypeError: a tensor isn't float32 on a CPU.
        ValueError: the shapes don't match.
    """
    if x.ndim != 3 or weight.shape != bias.shape or weight.shape[::2] != x.shape[:2]:
        shapes = f"{[*x.shape]}, {[*weight.shape]}, {[*bias.shape]}"
        raise ValueError(f"x, weight, bias have shapes {shapes}; expected [M, I, B], [M, U, I], [M, U, I]")
    out = x.new_empty(len(x), weight.shape[1], x.shape[2])
    _call("dac_stack_forward", [x.contiguous(), weight.contiguous(), bias.contiguous(), out], weight)
    return out


@torch.library.custom_op("claimcheck::dac_stack_backward", mutates_args=(), device_types="cpu")
def _backward(x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of x, weight and bias, given the result's gradient `grad` [M, U, B]."""
    operands = [tensor.contiguous() for tensor in (x, weight, bias, grad)]
    gradients = torch.empty_like(operands[0]), torch.zeros_like(operands[1]), torch.zeros_like(operands[2])
    _call("dac_stack_backward", [*operands, *gradients], weight)
    return gradients


def _call(name: str, tensors: list[Tensor], weight: Tensor) -> None:
    """Call kernel `name` with the tensors, x first."""
    require_single(name, tensors)
    sizes = (tensors[0].shape[2], *weight.shape[:0:-1])

    def work(part: slice) -> None:
        call(SOURCE, name, *tensors, (part.start, part.stop), sizes)

    in_parts(len(weight), work)


def _fake(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(len(x), weight.shape[1], x.shape[2])


def _fake_backward(x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = _backward(*ctx.saved_tensors, grad)
    return gradients


def _refuse(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    raise RuntimeError("a DAC layer has no second derivatives")


dac_stack.register_fake(_fake)
dac_stack.register_autograd(_differentiate, setup_context=_save)
_backward.register_fake(_fake_backward)
_backward.register_autograd(_refuse)
