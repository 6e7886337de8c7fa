"""An operator's value and gradients, for comparison with those of another."""

from collections.abc import Callable

import torch
from torch import Tensor

Layer = Callable[..., Tensor]


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def in_doubles(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def value_and_gradients(layer: Layer, tensors: list[Tensor]) -> list[Tensor]:
    """The value of `layer(*tensors)`, and each tensor's gradient of a fixed weighting of it."""
    out = layer(*tensors)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), tensors)]


def assert_alike(fast: list[Tensor], doubles: list[Tensor]) -> None:
    for got, wanted in zip(fast, doubles, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
