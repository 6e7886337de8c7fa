"""Every operator equals its printed equation in value and every gradient; float32 takes the fast paths."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops import rbf
from stages.ops.dac import dac_conv2d, dac_conv2d_reference, dac_linear, dac_linear_reference
from stages.ops.mba import mba, mba_reference
from stages.ops.yat import (
    yat_attention,
    yat_attention_reference,
    yat_conv2d,
    yat_conv2d_reference,
    yat_linear,
    yat_linear_reference,
)
from tests.ops.gradients import (
    Layer,
    as_leaves,
    assert_alike,
    assert_errs_at_most_twice_as_much,
    draw,
    drawn,
    in_doubles,
    value_and_gradients,
)

FACTORS = [torch.tensor(0.4, dtype=torch.float64), torch.tensor(0.05, dtype=torch.float64)]
"""Scale and epsilon."""


@dataclass(frozen=True)
class Case:
    fast: Layer
    reference: Layer
    tensors: list[Tensor]


def of_dac_conv(size: tuple[int, int], stride: int, padding: int, *, is_unshared: bool = False) -> Case:
    options = {"stride": stride, "padding": padding}
    bias = (5, 4, 3, 3) if is_unshared else (5, 4)
    tensors = drawn((3, 4, *size), (5, 4, 3, 3), bias)
    return Case(partial(dac_conv2d, **options), partial(dac_conv2d_reference, **options), tensors)


def of_dac_dense(*samples: int, inputs: int, outputs: int) -> Case:
    return Case(dac_linear, dac_linear_reference, drawn((*samples, inputs), (outputs, inputs), (outputs, inputs)))


def of_yat_dense() -> Case:
    return Case(
        lambda x, w, b, s, e: yat_linear(x, w, b, scale=s, epsilon=e),
        yat_linear_reference,
        [*drawn((3, 5, 7), (11, 7), (11,)), *FACTORS],
    )


def of_yat_conv(stride: int, padding: int, dilation: int, groups: int) -> Case:
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return Case(
        lambda x, w, b, s, e: yat_conv2d(x, w, b, **options, scale=s, epsilon=e),
        lambda x, w, b, s, e: yat_conv2d_reference(x, w, b, s, e, **options),
        [*drawn((2, 4, 7, 6), (8, 4 // groups, 3, 2), (8,)), *FACTORS],
    )


def of_yat_attention(queries: int, keys: int, width: int, depth: int) -> Case:
    return Case(
        lambda q, k, v, s, e: yat_attention(q, k, v, scale=s, epsilon=e),
        yat_attention_reference,
        [*drawn((2, 2, queries, width), (2, 2, keys, width), (2, 2, keys, depth)), *FACTORS],
    )


def masked_yat_attention(q: Tensor, k: Tensor, v: Tensor, s: Tensor, e: Tensor) -> Tensor:
    dot = q @ k.mT
    distance = q.square().sum(-1)[..., :, None] + k.square().sum(-1)[..., None, :] - 2 * dot
    seen = torch.ones(dot.shape[-2:], dtype=torch.bool).tril()
    return (s * dot.square() / (distance + e)).masked_fill(~seen, -torch.inf).softmax(-1) @ v


def of_causal_yat_attention(count: int) -> Case:
    return Case(
        lambda q, k, v, s, e: yat_attention(q, k, v, is_causal=True, scale=s, epsilon=e),
        masked_yat_attention,
        [*drawn(*[(2, count, 6)] * 2, (2, count, 3)), *FACTORS],
    )


METRICS = {"euclidean": None, "factored": "metric_factor", "free": "metric"}
# A free metric may give negative squared distances without a root, so only the Gaussian kernel uses it.
KERNELS = [(metric, "gaussian") for metric in METRICS] + [("euclidean", "laplacian"), ("factored", "laplacian")]
REFERENCE_KERNELS = {"gaussian": rbf.gaussian_reference, "laplacian": rbf.laplacian_reference}


def kernel_values(x: Tensor, t: Tensor, beta: Tensor, matrix: Tensor, metric: str, kernel: str) -> Tensor:
    if metric == "free":
        distance = rbf.free_metric_reference(x, t, matrix)
    else:
        factor = matrix if metric == "factored" else torch.eye(x.shape[-1], dtype=x.dtype) + 0 * matrix
        distance = rbf.mahalanobis_reference(x, t, factor)
    return REFERENCE_KERNELS[kernel](distance, beta)


def given(metric: str, matrix: Tensor) -> dict[str, Tensor]:
    name = METRICS[metric]
    return {} if name is None else {name: matrix}


def near_identity(width: int) -> Tensor:
    return torch.eye(width, dtype=torch.float64) + draw(width, width, seed=9) / (5 * width**0.5)


def of_rbf_attention(metric: str, kernel: str, b: int, n: int, t: int, e: int, f: int) -> Case:
    def fast(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, matrix: Tensor) -> Tensor:
        return rbf.rbf_attention(q, k, v, beta=beta, kernel=kernel, **given(metric, matrix)) + 0 * matrix.sum()

    def reference(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, matrix: Tensor) -> Tensor:
        return rbf.normalised_rbf_reference(kernel_values(q, k, beta, matrix, metric, kernel), v)

    beta = torch.tensor(0.07, dtype=torch.float64)
    return Case(fast, reference, [*drawn((b, 2, n, e), (b, 2, t, e), (b, 2, t, f)), beta, near_identity(e)])


def of_rbf_feedforward(metric: str, kernel: str, normalised: bool) -> Case:
    def fast(x: Tensor, centers: Tensor, weight: Tensor, beta: Tensor, matrix: Tensor) -> Tensor:
        options: dict[str, Any] = {"kernel": kernel, "normalised": normalised, **given(metric, matrix)}
        return rbf.rbf_feedforward(x, centers, weight, beta=beta, **options) + 0 * matrix.sum()

    def reference(x: Tensor, centers: Tensor, weight: Tensor, beta: Tensor, matrix: Tensor) -> Tensor:
        values = kernel_values(x.flatten(0, -2), centers, beta, matrix, metric, kernel)
        y = rbf.normalised_rbf_reference(values, weight.T) if normalised else values @ weight.T
        return y.unflatten(0, x.shape[:-1])

    return Case(
        fast, reference, [*drawn((2, 5, 13), (11, 13), (6, 11)), 0.05 + 0.01 * draw(11, seed=4), near_identity(13)]
    )


def mba_with_a_linear_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(mba(x, bias), weight.flatten(1))


CASES: dict[str, Case] = {
    **{f"DAC dense, {n} rows": of_dac_dense(n, inputs=i, outputs=o) for n, i, o in ((1, 1, 1), (300, 70, 63))},
    "DAC dense, 1100 rows": of_dac_dense(1100, inputs=18, outputs=5),
    "DAC dense, tokens": of_dac_dense(2, 3, inputs=5, outputs=4),
    **{
        f"DAC convolution, {size}, stride {stride}, padding {padding}": of_dac_conv(size, stride, padding)
        for size in ((5, 5), (9, 17), (33, 7))
        for stride, padding in ((1, 0), (1, 1), (2, 1), (3, 2))
    },
    "DAC convolution, a bias for each weight": of_dac_conv((12, 12), 2, 1, is_unshared=True),
    "MBA": Case(mba_with_a_linear_layer, mba_reference, drawn((5, 4), (3, 4, 2), (4, 2))),
    "Yat dense": of_yat_dense(),
    **{
        f"Yat convolution {options}": of_yat_conv(*options)
        for options in ((1, 0, 1, 1), (2, 1, 1, 1), (3, 2, 2, 2), (1, 1, 1, 4))
    },
    **{
        f"Yat attention {sizes}": of_yat_attention(*sizes)
        for sizes in ((5, 7, 4, 6), (1, 9, 6, 3), (70, 70, 64, 80), (66, 300, 80, 64))
    },
    **{f"causal Yat attention, {count}": of_causal_yat_attention(count) for count in (1, 9, 64, 67, 200)},
    **{
        f"RBF attention, {metric}, {kernel}, {sizes}": of_rbf_attention(metric, kernel, *sizes)
        for metric, kernel in KERNELS
        for sizes in ((1, 1, 1, 4, 4), (2, 3, 7, 5, 5), (3, 65, 65, 32, 32), (2, 97, 35, 17, 4))
    },
    **{
        f"RBF feed-forward, {metric}, {kernel}{', normalised' * normalised}": of_rbf_feedforward(
            metric, kernel, normalised
        )
        for metric, kernel in KERNELS
        for normalised in (False, True)
    },
}


@pytest.mark.parametrize("name", CASES)
def test_operator_equals_its_equation_in_value_and_every_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.ops.dac._BLOCK", 2000)  # enough for several blocks of output channels
    case = CASES[name]
    doubles = in_doubles(case.tensors)
    exact = value_and_gradients(case.reference, doubles)
    for ours, wanted in zip(value_and_gradients(case.fast, doubles), exact, strict=True):
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-9 * max(1.0, float(wanted.abs().max())))
    floats = as_leaves(case.tensors, torch.float32)
    ours = value_and_gradients(case.fast, floats)
    assert {tensor.dtype for tensor in ours} == {torch.float32}
    assert_alike(ours, value_and_gradients(case.reference, in_doubles(floats)))


@pytest.mark.parametrize("name", [name for name in CASES if "MBA" not in name and "laplacian" not in name])
def test_bfloat16_operator_errs_at_most_twice_as_much_as_pytorch(name: str) -> None:
    case = CASES[name]
    halves = as_leaves(case.tensors, torch.bfloat16)
    exact = value_and_gradients(case.reference, in_doubles(halves))
    plain, ours = (value_and_gradients(form, halves) for form in (case.reference, case.fast))
    assert_errs_at_most_twice_as_much(ours, plain, exact, 1e-6 if name.startswith("DAC") else 2**-8)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("Yat") or ", stride 1" in name])
def test_operator_computes_in_float32_under_autocast(name: str) -> None:
    case = CASES[name]
    floats = as_leaves(case.tensors, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        inside = case.fast(*floats)
    assert torch.equal(inside, case.fast(*floats).to(inside.dtype))
    assert inside.dtype == (torch.bfloat16 if name.startswith("DAC") else torch.float32)
    inside.sum().backward()
    assert floats[0].grad is not None and floats[0].grad.dtype == torch.float32
