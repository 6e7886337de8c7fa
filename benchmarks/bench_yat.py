"""Goals for the Yat product on a CPU, forward and backward: at most 1.2, 1.3 and 1.2 times the ordinary layer.

Dense beside Linear and GELU, convolution beside convolution, batch norm and ReLU, causal attention beside PyTorch's
fused one; both sides in float32.
Run: python -m benchmarks yat
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import Line, compare, time_line
from stages.ops.yat import yat_linear
from stages.ops.yat_attention import yat_attention
from stages.ops.yat_conv import yat_conv2d

EPSILON = 0.01


def draw(*shape: int) -> Tensor:
    """Leaves of a layer: small, as after a norm and an initialisation."""
    return (0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))).requires_grad_()


def line(what: str, goal: float, peer: str, leaves: list[Tensor], ours: Callable, theirs: Callable) -> Line:
    grad = draw(*ours(*leaves).shape).detach()

    def step(layer: Callable) -> Callable[[], None]:
        def run() -> None:
            for leaf in leaves:
                leaf.grad = None
            layer(*leaves).backward(grad)

        return run

    result = compare(step(ours), step(theirs), repeats=101)
    return time_line(what, peer, result, goal=goal)


def dense() -> Line:
    leaves = [draw(512, 256), draw(512, 256), draw(512), torch.ones((), requires_grad=True)]
    return line(
        "Yat dense, 512 samples, 256 to 512 units",
        1.2,
        "linear and GELU",
        leaves,
        lambda x, w, b, s: yat_linear(x, w, b, scale=s, epsilon=EPSILON),
        lambda x, w, b, s: F.gelu(F.linear(x, w, b)),
    )


def convolution() -> Line:
    leaves = [draw(16, 32, 16, 16), draw(32, 32, 3, 3), draw(32), torch.ones((), requires_grad=True)]
    norm = nn.BatchNorm2d(32)
    return line(
        "Yat convolution, 32 channels, 16 x 16, batch 16",
        1.3,
        "convolution, batch norm, ReLU",
        leaves,
        lambda x, w, b, s: yat_conv2d(x, w, b, 1, 1, scale=s, epsilon=EPSILON),
        lambda x, w, b, s: norm(F.conv2d(x, w, None, 1, 1)).relu(),
    )


def attention() -> Line:
    leaves = [*(draw(4, 4, 256, 64) for _ in range(3)), torch.ones((), requires_grad=True)]
    return line(
        "Yat attention, causal, 16 heads of 64, 256 tokens",
        1.2,
        "scaled_dot_product_attention",
        leaves,
        lambda q, k, v, s: yat_attention(q, k, v, is_causal=True, scale=s, epsilon=EPSILON),
        lambda q, k, v, s: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    )


def measure() -> list[Line]:
    return [dense(), convolution(), attention()]
