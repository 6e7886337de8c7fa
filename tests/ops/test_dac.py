"""DAC and MBA connections compared with loops over the equations, their references, and known layers."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops.dac import DACConv2d, DACLinear, dac_conv2d, dac_conv2d_reference, dac_linear, dac_linear_reference
from stages.ops.mba import MBA, mba, mba_reference
from tests.ops.dac_loops import CONVOLUTIONS, make_vectors
from tests.ops.gradients import Layer, as_leaves, drawn, value_and_gradients


@pytest.fixture(scope="module")
def loops() -> dict[str, np.ndarray]:
    return make_vectors()


def test_padding_adds_nothing_even_with_a_positive_bias() -> None:
    x, w, b = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 3, 3), torch.ones(1, 1)
    expected = torch.full((1, 1, 2, 2), 4.0)  # each corner of the image sees 4 pixels, each relu(1 + 0)
    for bias in (b, b[..., None, None].expand(1, 1, 3, 3)):
        for operator in (dac_conv2d_reference, dac_conv2d):
            assert torch.equal(operator(x, w, bias, 1, 1), expected)


@pytest.mark.parametrize("operator", [dac_linear_reference, dac_linear])
def test_dense_equals_loops_in_value_and_gradients(operator: Layer, loops: dict[str, np.ndarray]) -> None:
    inputs = [torch.from_numpy(loops[f"dense/{name}"]) for name in ("x", "weight", "bias")]
    ours = value_and_gradients(operator, as_leaves(inputs, torch.float64), torch.from_numpy(loops["dense/upstream"]))
    for name, tensor in zip(("output", "grad_x", "grad_weight", "grad_bias"), ours, strict=True):
        np.testing.assert_allclose(tensor.detach().numpy(), loops[f"dense/{name}"], rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("operator", [dac_conv2d_reference, dac_conv2d])
def test_convolution_equals_loops_in_value_and_gradients(
    operator: Callable[..., Tensor], case: str, loops: dict[str, np.ndarray]
) -> None:
    inputs = [torch.from_numpy(loops[f"{case}/{name}"]) for name in ("x", "weight", "bias")]
    stride, padding = (tuple(loops[f"{case}/{name}"].tolist()) for name in ("stride", "padding"))
    bound = partial(operator, stride=stride, padding=padding)
    ours = value_and_gradients(bound, as_leaves(inputs, torch.float64), torch.from_numpy(loops[f"{case}/upstream"]))
    for name, tensor in zip(("output", "grad_x", "grad_weight", "grad_bias"), ours, strict=True):
        np.testing.assert_allclose(tensor.detach().numpy(), loops[f"{case}/{name}"], rtol=0, atol=1e-9, err_msg=name)


def test_without_biases_dac_is_relu_and_a_plain_layer() -> None:
    x, w = drawn((2, 3, 9, 8), (4, 3, 3, 3))
    plain = F.conv2d(x.relu(), w, stride=2, padding=1)
    torch.testing.assert_close(dac_conv2d(x, w, torch.zeros(4, 3).double(), 2, 1), plain, rtol=0, atol=1e-12)
    x, w = drawn((2, 7), (4, 7))
    torch.testing.assert_close(dac_linear(x, w, torch.zeros_like(w)), F.linear(x.relu(), w), rtol=0, atol=1e-12)


def test_backward_pass_stores_no_activated_copy() -> None:
    kept: list[int] = []
    x, w, b = (tensor.requires_grad_() for tensor in drawn((2, 8, 10, 10), (16, 8, 3, 3), (16, 8)))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.numel()), t)[1], lambda t: t):
        dac_conv2d(x, w, b, 1, 1)
    assert sum(kept) == x.numel() + w.numel() + b.numel()


def test_modules_start_he_normal_with_zero_biases() -> None:
    torch.manual_seed(0)
    conv, dense = DACConv2d(32, 48, 3, stride=2, padding=1), DACLinear(400, 300)
    for module, fan_in in ((conv, 32 * 9), (dense, 400)):
        assert module.weight.mean().item() == pytest.approx(0, abs=4 * math.sqrt(2 / fan_in / module.weight.numel()))
        assert module.weight.var().item() == pytest.approx(2 / fan_in, rel=0.05)
        assert module.bias.abs().max() == 0
    images, rows = (x.float() for x in drawn((2, 32, 8, 8), (2, 3, 400)))
    with torch.no_grad():
        conv.bias.normal_()
        dense.bias.normal_()
    assert torch.equal(conv(images), dac_conv2d(images, conv.weight, conv.bias, 2, 1))
    assert torch.equal(dense(rows), dac_linear(rows, dense.weight, dense.bias))


def test_fully_unshared_module_has_a_bias_per_weight() -> None:
    module = DACConv2d(3, 4, (3, 5), is_fully_unshared=True)
    assert module.bias.shape == module.weight.shape == (4, 3, 3, 5)
    assert DACConv2d(3, 4, (3, 5)).bias.shape == (4, 3)


def test_equation_3_equals_loops_and_its_factored_form(loops: dict[str, np.ndarray]) -> None:
    x, weight, bias, expected = (torch.from_numpy(loops[f"mba/{name}"]) for name in ("x", "weight", "bias", "output"))
    torch.testing.assert_close(mba_reference(x, weight, bias), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(F.linear(mba(x, bias), weight.flatten(1)), expected, rtol=0, atol=1e-9)


def test_zero_biases_make_mba_a_repeated_relu() -> None:
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(MBA(3, 4)(x), x.relu().repeat_interleave(4, dim=1))


@pytest.mark.parametrize(
    ("operator", "shapes", "message"),
    [
        *(
            (dac_linear, shapes, "x, weight, bias have shapes")
            for shapes in (((2, 3), (4, 5), (4, 5)), ((2, 3), (4, 3), (3, 4)), ((2, 3), (4, 3), (3,)))
        ),
        (dac_conv2d, ((1, 2, 5, 5), (4, 3, 3, 3), (4, 3)), "x, weight, bias have shapes"),
        (dac_conv2d, ((1, 3, 5, 5), (4, 3, 3, 3), (4,)), "x, weight, bias have shapes"),
        (dac_conv2d, ((1, 3, 2, 2), (4, 3, 3, 3), (4, 3)), "doesn't fit"),
        (mba, ((2, 3), (4, 2)), "expected"),
    ],
)
def test_mismatched_shapes_are_refused(operator: Layer, shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        operator(*map(torch.zeros, shapes))
