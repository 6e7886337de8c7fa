"""TF32: products of float32 numbers that use only ten bits of mantissa  (NVIDIA 2020, A100 white paper).

Weights, maps, gradients and sums stay float32.  PyTorch may round the operands of matrix products and convolutions in
both passes; the optimiser's products, fused attention, `stages.ops.fast` and measurements stay float32.  On a GPU with
TF32, PyTorch's flags allow it.  On other devices this module rounds the operands, which costs time, but makes a
protocol mean the same everywhere (docs/decisions.md#0059).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from stages.run import Protocol

FIRST_CAPABILITY = (8, 0)
"""Of CUDA devices, the first that multiply in TF32."""
Products = Callable[[], AbstractContextManager[Any]]
_DROPPED_BITS = 13
_aten = torch.ops.aten
# Arguments that are multiplied; `addmm` and `baddbmm` add their first one unrounded.
_OPERANDS: dict[OpOverload, tuple[int, ...]] = {
    _aten.mm.default: (0, 1),
    _aten.bmm.default: (0, 1),
    _aten.addmm.default: (1, 2),
    _aten.baddbmm.default: (1, 2),
    _aten.convolution.default: (0, 1),
    _aten.convolution_backward.default: (0, 1, 2),
}
_WEIGHT_AND_GROUPS = {_aten.convolution.default: (1, 8), _aten.convolution_backward.default: (2, 9)}


def is_emulated(protocol: Protocol, device: torch.device) -> bool:
    """True if the protocol multiplies in TF32 and the device's products are rounded by this module."""
    return protocol.precision == "tf32" and device.type != "cuda"


def describe_products(protocol: Protocol, device: torch.device) -> dict[str, str]:
    """Return a result's field for products that this module rounded; empty if it rounded none."""
    return {"tf32": "emulated"} if is_emulated(protocol, device) else {}


def products_of(protocol: Protocol, device: torch.device) -> Products:
    """Return a factory of context managers for a step's forward and backward passes.

    Raises:
        ValueError: the protocol needs TF32, but the device has none, or it would be emulated in compiled code.
    """
    if protocol.precision != "tf32":
        return nullcontext
    if is_emulated(protocol, device):
        if protocol.compile:
            raise ValueError(
                f"precision is tf32 and compile is true; on a {device.type} TF32 is emulated operator by operator, "
                "which compiled code doesn't have: set compile: false, or train on a GPU"
            )
        return RoundedOperands
    capability = torch.cuda.get_device_capability(device)
    if capability < FIRST_CAPABILITY:
        name, (major, minor) = torch.cuda.get_device_name(device), capability
        raise ValueError(
            f"precision is tf32, and {name} (compute capability {major}.{minor}) has none; expected 8.0 at least: "
            "train on another GPU, or on the cpu, which emulates it"
        )
    return _allowed


@contextmanager
def _allowed() -> Iterator[None]:
    """Allow CUDA's libraries to round the operands of float32 products inside this block."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32, cudnn.allow_tf32 = True, True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def round_to_tf32(x: Tensor) -> Tensor:
    """Round float32 numbers to ten bits of mantissa, ties to even.

    Infinities and NaN stay; numbers beyond the largest one with ten bits become infinite.
    """
    bits = x.view(torch.int32)
    last_kept = (bits >> _DROPPED_BITS) & 1
    rounded = (bits + (2 ** (_DROPPED_BITS - 1) - 1) + last_kept) & -(2**_DROPPED_BITS)
    return torch.where(x.isfinite(), rounded.view(torch.float32), x)


class RoundedOperands(TorchDispatchMode):
    """Round the operands of float32 products and convolutions inside this block, also in backward passes."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        operands = () if _is_depthwise(func, args) else _OPERANDS.get(func, ())
        if operands and args[operands[0]].dtype == torch.float32:
            args = tuple(self.round(arg) if place in operands else arg for place, arg in enumerate(args))
        return func(*args, **(kwargs or {}))

    def round(self, x: Tensor) -> Tensor:
        return round_to_tf32(x)


def _is_depthwise(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """True for convolutions with one input channel per group, which CUDA doesn't compute as matrix products."""
    if func not in _WEIGHT_AND_GROUPS:
        return False
    weight, groups = (args[place] for place in _WEIGHT_AND_GROUPS[func])
    return groups > 1 and weight.shape[1] == 1
