"""Goals for the Yat product on a CPU: each layer 1.3 times as fast as in NMN's own package, forward and backward.

It may take at most 1.2, 1.3 and 1.2 times as long as the ordinary layer. Both sides are eager or compiled. The package
is the authors' nmn from PyPI. Ordinary layers are Linear and GELU; convolution, batch norm and ReLU; and PyTorch's
fused causal attention. All in float32. Limit: all but the package's products and convolutions costs nothing.
Run: python -m benchmarks yat
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from nmn.torch import YatNMN
from nmn.torch.attention.yat_attention import yat_attention as package_attention
from nmn.torch.layers import YatConv2D
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import Line, eager_and_compiled, passes, race
from stages.ops.yat import YatConv2d, YatLinear, yat_attention

EPSILON, TOKENS, GOAL = 0.01, 256, 1.3
Layer = Callable[..., Tensor]


def draw(*shape: int) -> Tensor:
    """Draw a small input, as after a norm and an initialisation."""
    return (0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))).requires_grad_()


def lines(
    what: str,
    plain: str,
    cost: float,
    leaves: list[Tensor],
    ours: Layer,
    package: Layer,
    other: Layer,
    *,
    same_products: bool = True,
) -> list[Line]:
    own = passes(eager_and_compiled("ours", ours), leaves)
    peers = passes(eager_and_compiled("NMN's package", package), leaves)
    ordinary = passes(eager_and_compiled(plain, other), leaves)
    return [
        race(own, peers, rounds=61).line(what, GOAL, same_products=same_products),
        race(own, ordinary, rounds=61).cost(f"{what}, against an ordinary layer", cost),
    ]


def dense() -> list[Line]:
    return lines(
        "Yat dense, 512 samples, 256 to 512 units",
        "linear and GELU",
        1.2,
        [draw(512, 256)],
        YatLinear(256, 512, scale="multiplier", epsilon=EPSILON),
        YatNMN(256, 512, epsilon=EPSILON),
        nn.Sequential(nn.Linear(256, 512), nn.GELU()),
    )


def convolution() -> list[Line]:
    return lines(
        "Yat convolution, 32 channels, 16 x 16, batch 16",
        "convolution, batch norm, ReLU",
        1.3,
        [draw(16, 32, 16, 16)],
        YatConv2d(32, 32, 3, 1, 1, scale="multiplier", epsilon=EPSILON),
        YatConv2D(32, 32, 3, 1, 1, epsilon=EPSILON),
        nn.Sequential(nn.Conv2d(32, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
    )


def attention() -> list[Line]:
    scale, seen = torch.ones((), requires_grad=True), torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()

    def package(*heads: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in heads)
        return package_attention(q, k, v, mask=seen, epsilon=EPSILON, alpha=scale)

    return lines(
        f"Yat attention, causal, 16 heads of 64, {TOKENS} tokens",
        "scaled_dot_product_attention",
        1.2,
        [draw(4, 4, TOKENS, 64) for _ in range(3)],
        lambda q, k, v: yat_attention(q, k, v, is_causal=True, scale=scale, epsilon=EPSILON),
        package,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        same_products=False,
    )


def measure() -> list[Line]:
    return [*dense(), *convolution(), *attention()]
