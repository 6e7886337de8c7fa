"""Helpers shared by the tests of the Yat operators: the package's vectors, and a fast form against its reference."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

VECTORS = Path(__file__).parents[1] / "golden" / "nmn_yat.npz"
Form = Callable[..., Tensor]


def load_case(case: str) -> dict[str, Tensor]:
    """The arrays of one case of nmn_yat.npz by their names."""
    with np.load(VECTORS) as file:
        return {k.removeprefix(f"{case}/"): torch.from_numpy(v) for k, v in file.items() if k.startswith(f"{case}/")}


def check_layer(layer: nn.Module, case: str, names: Mapping[str, Sequence[str]], **keywords: Tensor) -> None:
    """`layer` gives the outputs and all gradients of the package; `names`: ours -> theirs, stacked along the rows."""
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


def value_and_gradients(form: Form, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The value of `form(*tensors)` and the gradient of a fixed weighting of it for each tensor."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    value = form(*leaves)
    upstream = torch.randn(value.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return [value, *torch.autograd.grad((value * upstream.to(value.dtype)).sum(), leaves)]


def check_form(form: Form, reference: Form, tensors: Sequence[Tensor], dtype: torch.dtype, tolerance: float) -> None:
    """`form` equals `reference` in value and every gradient."""
    tensors = [x.to(dtype) for x in tensors]
    for ours, printed in zip(*(value_and_gradients(f, tensors) for f in (form, reference)), strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, printed, rtol=tolerance, atol=tolerance * max(1, printed.abs().max().item()))


def check_half(form: Form, reference: Form, tensors: Sequence[Tensor]) -> None:
    """In bfloat16 `form` errs at most twice as much as PyTorch does on the printed equation, in value and gradients."""
    rounded = [x.bfloat16() for x in tensors]
    exact = value_and_gradients(reference, [x.double() for x in rounded])
    plain, ours = (value_and_gradients(f, rounded) for f in (reference, form))
    for truth, printed, fast in zip(exact, plain, ours, strict=True):
        bound = 2 * (printed.double() - truth).abs().max() + 2**-8 * truth.abs().max()
        assert (fast.double() - truth).abs().max() <= bound
