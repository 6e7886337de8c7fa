"""Compare every operator on a device with its printed equation in float64 on the CPU: values and all gradients.

Part of `benchmarks.gpu_check`.  A GPU runs PyTorch's operators: our C++ is for CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.attempt import Lines, attempt
from benchmarks.gpu_tf32 import PROTOCOL as TF32
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
from stages.run import Precision
from stages.training.tf32 import products_of

Operator = Callable[..., Tensor]
ERRORS: dict[Precision, float] = {"float32": 1e-4, "tf32": 2e-2, "bfloat16": 2e-2}
"""Largest errors, relative to the largest value: eight to ten bits of mantissa, sums of hundreds."""
SCALE, EPSILON, SIGMA = 0.4, 1.0, 3.0
BETA = 1 / (2 * SIGMA**2)
PADDED = {"stride": 1, "padding": 1, "dilation": 1, "groups": 1}
STRIDED = {"stride": 2, "padding": 1}


def causal_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend query by query, because the equation has no mask."""
    rows = [
        yat_attention_reference(q[..., i : i + 1, :], k[..., : i + 1, :], v[..., : i + 1, :], SCALE, EPSILON)
        for i in range(q.shape[-2])
    ]
    return torch.cat(rows, dim=-2)


# Operator, equation, and the shapes of their tensors.
OPERATORS: dict[str, tuple[Operator, Operator, list[tuple[int, ...]]]] = {
    "DAC, dense": (dac_linear, dac_linear_reference, [(40, 70), (30, 70), (30, 70)]),
    "DAC, convolution": (
        partial(dac_conv2d, padding=1),
        partial(dac_conv2d_reference, padding=1),
        [(2, 20, 9, 9), (20, 20, 3, 3), (20, 20)],
    ),
    "DAC, convolution with stride 2": (
        partial(dac_conv2d, **STRIDED),
        partial(dac_conv2d_reference, **STRIDED),
        [(2, 20, 9, 9), (20, 20, 3, 3), (20, 20)],
    ),
    "MBA": (lambda x, w, b: F.linear(mba(x, b), w.flatten(1)), mba_reference, [(40, 30), (20, 30, 2), (30, 2)]),
    "Yat, dense": (
        partial(yat_linear, scale=SCALE, epsilon=EPSILON),
        partial(yat_linear_reference, s=SCALE, eps=EPSILON),
        [(40, 64), (30, 64), (30,)],
    ),
    "Yat, convolution": (
        partial(yat_conv2d, **PADDED, scale=SCALE, epsilon=EPSILON),
        partial(yat_conv2d_reference, **PADDED, s=SCALE, eps=EPSILON),
        [(2, 6, 9, 9), (8, 6, 3, 3), (8,)],
    ),
    "Yat, attention": (
        partial(yat_attention, scale=SCALE, epsilon=EPSILON),
        partial(yat_attention_reference, s=SCALE, eps=EPSILON),
        [(2, 3, 65, 64)] * 3,
    ),
    "Yat, causal attention": (
        partial(yat_attention, is_causal=True, scale=SCALE, epsilon=EPSILON),
        causal_reference,
        [(2, 3, 65, 64)] * 3,
    ),
    "HyperBF, attention": (
        lambda q, k, v, w: rbf.rbf_attention(q, k, v, beta=BETA, metric_factor=w / 4),
        lambda q, k, v, w: rbf.rbf_attention_reference(q, k, v, SIGMA, w / 4),
        [(2, 3, 65, 16)] * 3 + [(16, 16)],
    ),
    "HyperBF, feed-forward": (
        lambda x, t, c: rbf.rbf_feedforward(x, t, c.T, beta=BETA),
        lambda x, t, c: rbf.gaussian_reference((x[:, None] - t).square().sum(-1), BETA) @ c,
        [(40, 16), (30, 16), (30, 20)],
    ),
}


def correctness(device: torch.device) -> Lines:
    """Yield the largest relative errors of each operator and its gradients, in each precision."""
    for precision, allowed in ERRORS.items():
        for name, case in OPERATORS.items():
            line = {"check": f"{name}: the device equals float64", "precision": precision}
            yield attempt(line, partial(errors_of, *case, device, precision, allowed))


def errors_of(
    ours: Operator,
    reference: Operator,
    shapes: Sequence[tuple[int, ...]],
    device: torch.device,
    precision: Precision,
    allowed: float,
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    drawn = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    tensors = [tensor.to(device).requires_grad_() for tensor in drawn]
    doubles = [tensor.double().requires_grad_() for tensor in drawn]
    with products_of(TF32, device)() if precision == "tf32" else torch.enable_grad():
        found = value_and_gradients(ours, tensors)
    errors = [
        float((a.cpu().double() - b).abs().max() / b.abs().max())
        for a, b in zip(found, value_and_gradients(reference, doubles), strict=True)
    ]
    return {"errors": errors, "ok": max(errors) <= allowed}


def value_and_gradients(operator: Operator, tensors: list[Tensor]) -> list[Tensor]:
    out = operator(*tensors)
    return [out.detach(), *torch.autograd.grad(out.float().square().mean(), tensors)]
