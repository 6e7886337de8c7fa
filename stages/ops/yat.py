"""The Yat product, alignment over distance, and its dense layer          (NMN architecture guide; numbers are ours).

    h_i(x) = s · (w_i·x + b_i)² / (‖w_i − x‖² + ε)          (1)  dense, one output for each unit i of n
    s = (n / log(1 + n))^α,  α learned                      (2)  the guide's scale
    s = α                                                   (3)  the scale of the released package
    ‖w − x‖² = ‖w‖² + ‖x‖² − 2 w·x                          (4)  the guide's reuse of the dot product

The guide prints a sum over i in front of (1); its own example has one output per unit, and so does the package.
B samples, D input features, N units.

Types narrower than float32 (bfloat16, float16, autocast) are widened to float32 first, and only the result is rounded.
(4) cancels if x is near w: its error is a few units in the last place of ‖w‖² + ‖x‖² + 2|b|, which may exceed ε.  It
is clamped at 0, so responses are never negative or infinite; the clamp's zero gradient is the true one at x = w.
"""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.ops.precision import widen, without_autocast

# Equation 2, equation 3, a constant, or 1.
ScaleReading = Literal["guide", "multiplier"] | float | None
Factor = Tensor | float


def yat_linear_reference(x: Tensor, w: Tensor, b: Tensor, s: Factor, eps: Factor) -> Tensor:
    """Equation 1 as printed, unit by unit.  x: [..., D]; w: [N, D]; b: [N]; returns [..., N]."""
    difference = w - x.unsqueeze(-2)  # [..., N, D]
    return s * ((w * x.unsqueeze(-2)).sum(-1) + b).square() / (difference.square().sum(-1) + eps)


def guide_scale(alpha: Tensor, n: int) -> Tensor:
    """Equation 2."""
    return (n / math.log1p(n)) ** alpha


def yat_ratio(aligned: Tensor, squared_norms: Tensor, scale: Factor, epsilon: Factor) -> Tensor:
    """Return aligned² · scale / (distance + ε) with distance = `squared_norms` − 2 · `aligned` (equation 4).

    If `aligned` includes a bias, w·x + b, pass ‖w‖² + ‖x‖² + 2b, so that the map without the bias isn't needed.
    """
    distance = torch.sub(squared_norms, aligned, alpha=2).clamp(min=0)
    return scale * aligned.square() / (distance + epsilon)


def yat_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, scale: Factor = 1.0, epsilon: Factor = 1e-5
) -> Tensor:
    """Equations 1 and 4 with one matrix product.  x: [..., D]; weight: [N, D]; returns [..., N]."""
    with without_autocast(x.device):
        wide_x, weight, bias = widen(x, weight, bias)
        units = weight.square().sum(-1)
        squared_norms = wide_x.square().sum(-1, keepdim=True) + (units if bias is None else units + 2 * bias)
        return yat_ratio(F.linear(wide_x, weight, bias), squared_norms, scale, epsilon).to(x.dtype)


class YatScale(nn.Module):
    """Scale s for `n` units: equation 2 or 3 with a learned α that starts at 1, or a constant.

    Raises:
        ValueError: the scale is neither a known name nor a number.
    """

    def __init__(self, n: int, reading: ScaleReading, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if reading is not None and not isinstance(reading, int | float) and reading not in ("guide", "multiplier"):
            raise ValueError(f"scale is {reading!r}; known: guide, multiplier, a number, None")
        self.n, self.reading = n, reading
        self.alpha = nn.Parameter(torch.ones((), device=device, dtype=dtype)) if isinstance(reading, str) else None

    def forward(self) -> Factor:
        if self.alpha is None:
            return 1.0 if self.reading is None else float(cast(float, self.reading))
        alpha = self.alpha.to(torch.promote_types(self.alpha.dtype, torch.float32))
        return guide_scale(alpha, self.n) if self.reading == "guide" else alpha


class YatEpsilon(nn.Module):
    """ε > 0: a constant, or learned as softplus(raw), which starts at `value`.

    Raises:
        ValueError: `value` is not positive.
    """

    def __init__(self, value: float, is_learned: bool, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if not 0 < value < math.inf:
            raise ValueError(f"epsilon is {value}; expected a positive number")
        self.value = value
        raw = value + math.log(-math.expm1(-value))  # the inverse of softplus, without cancellation
        self.raw = nn.Parameter(torch.full((), raw, device=device, dtype=dtype)) if is_learned else None

    def forward(self) -> Factor:
        if self.raw is None:
            return self.value
        return F.softplus(self.raw.to(torch.promote_types(self.raw.dtype, torch.float32)))


class YatLinear(nn.Linear):
    """Equation 1 in place of `nn.Linear` and its activation.  [..., in_features] -> [..., out_features].

    Weights start as Xavier normal, biases as uniform within 1/√in_features, as in the released package.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        scale: ScaleReading = "guide",
        epsilon: float = 1e-5,
        learnable_epsilon: bool = False,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.scale = YatScale(out_features, scale, device, dtype)
        self.epsilon = YatEpsilon(epsilon, learnable_epsilon, device, dtype)

    def reset_parameters(self) -> None:
        nn.init.xavier_normal_(self.weight)
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features)
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return yat_linear(x, self.weight, self.bias, scale=self.scale(), epsilon=self.epsilon())
