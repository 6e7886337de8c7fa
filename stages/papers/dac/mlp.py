"""Fully connected networks for the SGEMM regression, base and DAC    (DAC paper, section 5).

    base   (dense → BN → ReLU), d times → dense with 1 unit
    DAC    (DAC → BN′), d times → DAC with 1 unit

d hidden layers; widths are constant (rectangular) or fall evenly from `width` to `last_width` (pyramidal; the text says
"decreasing").  Dense layers have no bias before BN.  Both output units have one: with a single unit DAC is a standard
connection (section 4), and the baseline's has a bias.  B batch, F input features.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from stages.ops.dac import DACLinear
from stages.papers.dac.layers import without_shift


def matched_width(width: int) -> int:
    """Return the DAC width with about as many parameters, half of them weights ("equivalent width")."""
    return round(width / math.sqrt(2))


def hidden_widths(depth: int, width: int, last_width: int | None = None) -> list[int]:
    """Units of each hidden layer, evenly from `width` down to `last_width` (None: `width`).

    Raises:
        ValueError: there are no layers, or the widths increase.
    """
    last_width = width if last_width is None else last_width
    if depth < 2 or not 1 <= last_width <= width:
        raise ValueError(
            f"depth, width, last_width are {depth}, {width}, {last_width}; "
            "expected depth ≥ 2 and 1 ≤ last_width ≤ width"
        )
    return [round(width + (last_width - width) * layer / (depth - 1)) for layer in range(depth)]


def dense(in_features: int, out_features: int, *, has_bias: bool = False) -> nn.Linear:
    """He normal weights, zero bias."""
    linear = nn.Linear(in_features, out_features, bias=has_bias)
    nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
    if has_bias:
        nn.init.zeros_(linear.bias)
    return linear


class MLP(nn.Module):
    """The baseline.  Standardised features [B, F] -> predictions [B, 1]."""

    def __init__(self, *, in_features: int, depth: int, width: int, last_width: int | None = None) -> None:
        super().__init__()
        sizes = [in_features, *hidden_widths(depth, width, last_width)]
        layers: list[nn.Module] = []
        for inputs, units in pairwise(sizes):
            layers += [dense(inputs, units), nn.BatchNorm1d(units), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = dense(sizes[-1], 1, has_bias=True)

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.layers(features))


class DACMLP(nn.Module):
    """Unshared biases, starting at the input.  Standardised features [B, F] -> predictions [B, 1].

    Widths are this network's own; `matched_width` of a baseline's width gives about as many parameters.
    """

    def __init__(self, *, in_features: int, depth: int, width: int, last_width: int | None = None) -> None:
        super().__init__()
        sizes = [in_features, *hidden_widths(depth, width, last_width)]
        layers: list[nn.Module] = []
        for inputs, units in pairwise(sizes):
            layers += [DACLinear(inputs, units), without_shift(nn.BatchNorm1d(units))]
        self.layers = nn.Sequential(*layers)
        self.head = DACLinear(sizes[-1], 1)
        self.output_bias = nn.Parameter(torch.zeros(1))

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.layers(features)) + self.output_bias
