"""Compare an operator's value and gradients with another's."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

Layer = Callable[..., Tensor]
VECTORS = Path(__file__).parents[1] / "golden" / "nmn_yat.npz"


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [draw(*shape, seed=seed) for seed, shape in enumerate(shapes)]


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def as_leaves(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]


def in_doubles(tensors: Sequence[Tensor]) -> list[Tensor]:
    return as_leaves(tensors, torch.float64)


def value_and_gradients(layer: Layer, tensors: Sequence[Tensor], upstream: Tensor | None = None) -> list[Tensor]:
    """Return the value of `layer(*tensors)`, and each tensor's gradient of a fixed weighting of it."""
    out = layer(*tensors)
    if upstream is None:
        upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return [out.detach(), *torch.autograd.grad((out * upstream.to(out.dtype)).sum(), tensors)]


def assert_alike(fast: Sequence[Tensor], doubles: Sequence[Tensor]) -> None:
    for got, wanted in zip(fast, doubles, strict=True):
        # A factor's gradient is a sum over everything, most of which cancels.
        error = 1e-5 if wanted.ndim else 1e-3
        # With a single key the gradient is only rounding.
        torch.testing.assert_close(got.double(), wanted, rtol=error, atol=error * max(0.1, float(wanted.abs().max())))


def assert_errs_at_most_twice_as_much(
    fast: Sequence[Tensor], plain: Sequence[Tensor], exact: Sequence[Tensor], least: float = 2**-8
) -> None:
    """`fast` and PyTorch's `plain` are in half precision; `least` is a share of the largest number."""
    for got, theirs, truth in zip(fast, plain, exact, strict=True):
        share = least if truth.ndim else 2 * least  # most of a factor's gradient cancels
        bound = 2 * (theirs.double() - truth).abs().max() + share * max(0.1, float(truth.abs().max()))
        assert got.dtype == theirs.dtype and (got.double() - truth).abs().max() <= bound


def load_case(case: str) -> dict[str, Tensor]:
    """Return the arrays of one case of nmn_yat.npz by name."""
    with np.load(VECTORS) as file:
        return {k.removeprefix(f"{case}/"): torch.from_numpy(v) for k, v in file.items() if k.startswith(f"{case}/")}


def check_layer(layer: nn.Module, case: str, names: Mapping[str, Sequence[str]], **keywords: Tensor) -> None:
    """Check that `layer` has the package's outputs and gradients; `names` maps ours to theirs, stacked along rows."""
    vectors = load_case(case)
    layer.double()
    parameters = dict(layer.named_parameters())
    assert set(parameters) == set(names)
    with torch.no_grad():
        for ours, theirs in names.items():
            parameters[ours].copy_(torch.cat([vectors[name] for name in theirs]).view_as(parameters[ours]))
    inputs = vectors["inputs"].requires_grad_()
    outputs = layer(inputs, **keywords)
    (outputs * vectors["upstream"]).sum().backward()
    torch.testing.assert_close(outputs, vectors["outputs"], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(inputs.grad, vectors["input_gradients"], rtol=1e-9, atol=1e-9)
    for ours, theirs in names.items():
        expected = torch.cat([vectors[f"{name}_gradients"] for name in theirs]).view_as(parameters[ours])
        torch.testing.assert_close(parameters[ours].grad, expected, rtol=1e-9, atol=1e-9)
