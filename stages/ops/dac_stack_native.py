"""DAC's dense layer for M networks at once, each with weights of its own: the sums of `dac_native.cpp`.

As operators of PyTorch, so that compiled code can call them.
M networks, I inputs, U units, B batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.ops.native import call, in_parts, load_library

_SOURCE = Path(__file__).with_name("dac_native.cpp")
_library = torch.library.Library("claimcheck", "DEF")
_library.define("dac_stack(Tensor x, Tensor weight, Tensor bias) -> Tensor")
_library.define("dac_stack_backward(Tensor x, Tensor weight, Tensor bias, Tensor grad) -> (Tensor, Tensor, Tensor)")


def is_available(weight: Tensor) -> bool:
    """Whether `dac_stack` can take networks of this type on this device."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and load_library(_SOURCE) is not None


def dac_stack(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Equation 4 of the DAC paper for each network, float32.

    x: [M, I, B], a unit's samples side by side; weight, bias: [M, U, I]; returns [M, U, B].

    Raises:
        ValueError: the shapes don't fit each other.
    """
    if x.ndim != 3 or weight.shape != bias.shape or weight.shape[::2] != x.shape[:2]:
        shapes = f"{[*x.shape]}, {[*weight.shape]}, {[*bias.shape]}"
        raise ValueError(f"x, weight, bias have shapes {shapes}; expected [M, I, B], [M, U, I], [M, U, I]")
    out: Tensor = torch.ops.claimcheck.dac_stack(x, weight, bias)
    return out


@torch.library.impl(_library, "dac_stack", "CPU")
def _forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    operands = [tensor.contiguous() for tensor in (x, weight, bias)]
    out = x.new_empty(len(x), weight.shape[1], x.shape[2])
    _call("dac_stack_forward", [*operands, out], weight)
    return out


@torch.library.impl(_library, "dac_stack_backward", "CPU")
def _backward(x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    operands = [tensor.contiguous() for tensor in (x, weight, bias, grad)]
    gradients = torch.empty_like(operands[0]), torch.zeros_like(operands[1]), torch.zeros_like(operands[2])
    _call("dac_stack_backward", [*operands, *gradients], weight)
    return gradients


def _fake_forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(len(x), weight.shape[1], x.shape[2])


def _fake_backward(x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.claimcheck.dac_stack_backward(*ctx.saved_tensors, grad)
    return gradients


torch.library.register_fake("claimcheck::dac_stack", _fake_forward)
torch.library.register_fake("claimcheck::dac_stack_backward", _fake_backward)
torch.library.register_autograd("claimcheck::dac_stack", _differentiate, setup_context=_save)


def _call(name: str, tensors: list[Tensor], weight: Tensor) -> None:
    """Call `name` with the tensors' memory, x first."""
    sizes = (tensors[0].shape[2], *weight.shape[:0:-1])

    def work(part: slice) -> None:
        call(_SOURCE, name, *tensors, (part.start, part.stop), sizes)

    in_parts(len(weight), work)
