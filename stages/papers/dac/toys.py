"""The paper's constructions, written out: Theorem C.1, Figure 7, Remark 2.1 and the approximation by equation 6.

    DAC unit, its input x replicated k times     f(x) = Σ_j w_j φ(b_j + x)                     2k numbers
    standard network with one hidden layer       f(x) = d + Σ_j c_j φ(a_j x + b_j)             3k + 1 numbers

A continuous piecewise linear function with k pieces is given by k - 1 kinks, k slopes and the zero of its first piece.
All in float64.  N points, k pieces or units.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stages.ops.dac import dac_linear


@dataclass(frozen=True, eq=False)
class PiecewiseLinear:
    """An element of PL_k: `kinks` [k - 1] ascending, `slopes` [k]; the line of the first piece crosses 0 at `zero`."""

    kinks: Tensor
    slopes: Tensor
    zero: float

    def __call__(self, x: Tensor) -> Tensor:
        """x: [N], returns [N]: the first line, plus the change of slope at every kink passed."""
        jumps = self.slopes.diff()
        return self.slopes[0] * (x - self.zero) + ((x[:, None] - self.kinks).clamp(min=0) * jumps).sum(1)


def dac_unit(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Equation 6: one DAC unit with its input replicated.  x: [N]; w, b: [k]; returns [N]."""
    return dac_linear(x[:, None].expand(-1, len(w)), w[None], b[None])[:, 0]


def dac_parameters(function: PiecewiseLinear) -> tuple[Tensor, Tensor]:
    """w, b [k] with which the unit equals `function` right of its zero, where that lies left of all kinks."""
    w = torch.cat([function.slopes[:1], function.slopes.diff()])
    return w, -torch.cat([torch.tensor([function.zero], dtype=w.dtype), function.kinks])


def standard_parameters(function: PiecewiseLinear) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """a, b, c [k] and d [1] with which the standard network equals `function` everywhere; two pieces or more.

    Unit j opens to the right at kink j; the last one opens to the left at the first kink and gives the first slope.
    """
    first = function.kinks[:1]
    a = torch.ones_like(function.slopes)
    a[-1] = -1
    b = torch.cat([-function.kinks, first])
    c = torch.cat([function.slopes[1:2], function.slopes[1:].diff(), -function.slopes[:1]])
    return a, b, c, function(first)


def standard_network(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """x: [N], returns [N]."""
    return d + ((a * x[:, None] + b).relu() * c).sum(1)


def random_piecewise_linear(k: int, generator: torch.Generator) -> PiecewiseLinear:
    """Kinks in [0, k), slopes normal, the first piece's zero left of all kinks."""
    kinks = torch.rand(k - 1, generator=generator, dtype=torch.float64).mul(k).sort().values
    slopes = torch.randn(k, generator=generator, dtype=torch.float64)
    return PiecewiseLinear(kinks=kinks, slopes=slopes, zero=-1.0)


def interpolating_unit(values: Tensor) -> tuple[Tensor, Tensor]:
    """w, b [n] of a DAC unit through `values` [n] at n even points of [0, 1], from 1 / (n - 1) left of it upwards."""
    step = 1 / (len(values) - 1)
    starts = torch.arange(-1, len(values) - 1, dtype=values.dtype) * step
    slopes = torch.cat([values[:1], values.diff()]) / step
    return torch.cat([slopes[:1], slopes.diff()]), -starts


SEPARATED_POINTS = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
"""Figure 7a: of three points on a line, the outer two are of one class, so no line separates the middle one."""


def separating_unit(points: Tensor) -> Tensor:
    """Figure 7a's unit: one bias takes the first point into the second quadrant, where ReLU flattens it."""
    w = torch.tensor([[3.0, -1.0]], dtype=torch.float64)
    b = torch.tensor([[-1.0, 1.0]], dtype=torch.float64)
    return dac_linear(points, w, b)[:, 0]


def square_by_dac(points: Tensor) -> Tensor:
    """Figure 7b: g(f(x)) with w = 1, b_1 = 1, b_2 = 0 and g(y) = y_1 - 2 y_2 - 1.  points: [N, 2]; returns [N]."""
    w = torch.ones(2, 2, dtype=torch.float64)
    b = torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    y = dac_linear(points, w, b)
    return y[:, 0] - 2 * y[:, 1] - 1


def square_by_three_units(points: Tensor) -> Tensor:
    """-1 + φ(x_1 + x_2 + 2) - 2 φ(x_1) - 2 φ(x_2), three standard units: the same square.  [N, 2] -> [N].

    Where x_1 + x_2 ≥ -2 it is 1 - |x_1| - |x_2|; elsewhere it is at most -1.
    """
    x_1, x_2 = points.unbind(1)
    return -1 + (x_1 + x_2 + 2).relu() - 2 * x_1.relu() - 2 * x_2.relu()


def endless_direction(weight: Tensor, scale: Tensor) -> Tensor:
    """A direction in which c_0 + Σ_i c_i φ(w_i x + b_i) never falls from any point, for two units of two inputs.

    Moving only the first unit's sum, by the sign of its c_1, can only raise c_1 φ(·).  So a function that is not
    negative at a point is not negative on a whole ray.  weight: [2, 2], invertible; scale: c [2]; returns [2].
    """
    unit = torch.tensor([1.0, 0.0], dtype=weight.dtype)
    return torch.linalg.solve(weight, unit * (1 if scale[0] >= 0 else -1))
