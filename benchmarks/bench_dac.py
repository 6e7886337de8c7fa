"""Goals for DAC's layers on a CPU, forward and backward: at least 6 times faster than the convolution written with
PyTorch's grouped one, at most 5 times the time of an ordinary ReLU and convolution; dense: 25 times, and 3.5 times.

Sizes of the paper's networks: 16 channels of 32 x 32 and 64 of 8 x 8; the widest dense layer has 141 units.
Run: python -m benchmarks dac
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import Line, compare, milliseconds
from stages.ops.dac import dac_conv2d, dac_linear

BATCH, WIDTH, ROWS = 16, 141, 1024
Operator = Callable[[Tensor, Tensor, Tensor], Tensor]


def grouped(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each output channel a group of its own over all inputs, activated for it: the expansion in memory."""
    out, inputs = bias.shape
    activated = (bias[:, :, None, None] + x.unsqueeze(1)).relu().reshape(len(x), out * inputs, *x.shape[2:])
    return F.conv2d(activated, weight, padding=1, groups=out)


def ordinary(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x.relu(), weight, padding=1)


def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return dac_conv2d(x, weight, bias, 1, 1)


def dense_sum(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.einsum("oi,boi->bo", weight, (bias + x.unsqueeze(1)).relu())


def dense_ordinary(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x.relu(), weight)


def lines(
    what: str, leaves: list[Tensor], operators: Mapping[str, tuple[Operator, float, bool]], own: Operator
) -> list[Line]:
    """A line a peer: `{name: (operator, goal, at most)}`; leaves are x, weight and bias."""

    def step(operator: Operator) -> Callable[[], None]:
        def run() -> None:
            for leaf in leaves:
                leaf.grad = None
            operator(*leaves).sum().backward()

        return run

    found = []
    for name, (operator, goal, at_most) in operators.items():
        result = compare(step(own), step(operator), repeats=5)
        found.append(
            Line(
                what=what,
                peer=f"{name}: {milliseconds(result.peer_seconds)}",
                ours=milliseconds(result.ours_seconds),
                value=1 / result.ratio if at_most else result.ratio,
                goal=goal,
                at_most=at_most,
                unit="× its time" if at_most else "× faster",
            )
        )
    return found


def measure() -> list[Line]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    found = []
    for channels, side in ((16, 32), (64, 8)):
        leaves = [draw(BATCH, channels, side, side), draw(channels, channels, 3, 3), draw(channels, channels)]
        peers = {"grouped convolution": (grouped, 6.0, False), "ReLU and convolution": (ordinary, 5.0, True)}
        found += lines(f"DAC convolution, {channels} channels, {side} x {side}, batch {BATCH}", leaves, peers, ours)
    leaves = [draw(ROWS, WIDTH), draw(WIDTH, WIDTH), draw(WIDTH, WIDTH)]
    peers = {"einsum": (dense_sum, 25.0, False), "ReLU and linear": (dense_ordinary, 3.5, True)}
    return [*found, *lines(f"DAC dense, {WIDTH} units, batch {ROWS}", leaves, peers, dac_linear)]
