"""Findings on what a Yat unit can and can't do, from the operator: far responses, approximation, exclusive or."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.ops.yat import yat_linear, yat_linear_reference
from stages.papers.finding import Finding, Statements

state = Statements(__file__)

EPSILON = 1e-5
"""The released package's; the guide has "stability constant"."""
VANISHED = 0.01
"""A response below this share of another has decayed beside it."""
ROUNDING = 1e-12
HIDDEN = (8, 32, 128)
"""Units with which a function is approximated."""


def theory() -> list[Finding]:
    """One finding per claim."""
    return [far_response(), opposite_response(), universal_approximation(), exclusive_or()]


def _respond(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return yat_linear_reference(x, w, b, 1.0, EPSILON)


def far_response() -> Finding:
    """Along a direction u, (w·tu)² / (‖w − tu‖² + ε) goes to (w·u)²; a Gaussian's exp(−‖w − tu‖² / 2‖w‖²) goes to 0."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(1, 27, generator=generator, dtype=torch.float64)  # 3 x 3 pixels in three planes
    size, no_bias = w.norm(), torch.zeros(1, dtype=torch.float64)
    own = F.normalize(w)
    directions = {
        "any_direction": F.normalize(torch.randn(1000, 27, generator=generator, dtype=torch.float64)),
        "own_direction": own,
    }
    computed: dict[str, float] = {}
    vanish, highest = [], 0.0
    for name, u in directions.items():
        limit = (u @ w.T).square().mean()
        near, far = (_respond(times * size * u, w, no_bias) for times in (10, 1e6))
        computed |= {f"{name}_10_times": (near.mean() / limit).item(), f"{name}_1e6_times": (far.mean() / limit).item()}
        vanish.append((far.mean() < VANISHED * near.mean()).item())
        highest = max(highest, near.max().item(), far.max().item())
    beside_kernel = highest / _respond(w, w, no_bias).item()
    lengths = torch.tensor([[10.0], [1e6]], dtype=torch.float64) * size
    over_dot = (_respond(lengths * own, w, no_bias) / (lengths * own @ w.T)).flatten().tolist()
    suppressed = over_dot[1] / over_dot[0]
    gaussian = torch.exp(-(w - 10 * size * own).square().sum() / (2 * size**2)).item()

    return state(
        "nmn.theory.decay",
        all(vanish),
        beside_kernel < VANISHED,
        suppressed < VANISHED,
        computed=computed
        | {
            "gaussian_10_times": gaussian,
            "farthest_over_response_to_the_kernel": beside_kernel,
            "over_dot_product_1e6_times_to_10_times": suppressed,
        },
    )


def opposite_response() -> Finding:
    """ⵟ(w, −w) = ‖w‖⁴ / (4‖w‖² + ε), about ‖w‖² / 4: the numerator's square forgets the sign."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(1, 64, generator=generator, dtype=torch.float64)  # a head of GPT-2 small
    across = torch.randn(1, 64, generator=generator, dtype=torch.float64)
    across = w.norm() * F.normalize(across - (across @ w.T) / w.square().sum() * w)
    no_bias = torch.zeros(1, dtype=torch.float64)
    same, opposite, orthogonal = (_respond(x, w, no_bias).item() for x in (w, -w, across))
    quarter = w.square().sum().item() / 4

    return state(
        "nmn.theory.aligned",
        opposite <= orthogonal + ROUNDING,
        opposite < VANISHED * same,
        computed={
            "response_to_the_opposite": opposite,
            "quarter_of_the_squared_norm": quarter,
            "response_to_an_orthogonal": orthogonal,
            "opposite_over_response_to_the_kernel": opposite / same,
        },
    )


def _fit(hidden: int, generator: torch.Generator) -> float:
    """Largest error on 2,000 points of the square of cos(3x + y) y − 1 by a Linear after `hidden` units."""
    x = torch.rand(2000, 2, generator=generator, dtype=torch.float64) * 2 - 1
    w = 2 * F.normalize(torch.randn(hidden, 2, generator=generator, dtype=torch.float64))
    b = torch.randn(hidden, generator=generator, dtype=torch.float64)
    wanted = (torch.cos(3 * x[:, 0] + x[:, 1]) * x[:, 1] - 1).unsqueeze(-1)
    h = _respond(x, w, b)
    readout = torch.linalg.lstsq(h, wanted, driver="gelsd").solution
    return float(f"{(h @ readout - wanted).abs().max().item():.1g}")  # further digits depend on the processor


def universal_approximation() -> Finding:
    """The printed layer is never negative; under a Linear its units give every radial unit 1 / (‖w − x‖² + ε)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(10_000, 4, generator=generator, dtype=torch.float64) * 2 - 1
    w, b = torch.randn(64, 4, generator=generator, dtype=torch.float64), torch.randn(64, generator=generator).double()
    least = _respond(x, w, b).sum(-1).min().item()
    least_relu = F.relu(x @ w.T + b).sum(-1).min().item()
    one = torch.ones(64, dtype=torch.float64)
    second_difference = (_respond(x, w, one) + _respond(x, w, -one)) / 2 - _respond(x, w, 0 * one)
    radial = 1 / ((w - x.unsqueeze(-2)).square().sum(-1) + EPSILON)
    error = (second_difference / radial - 1).abs().max().item()
    fits = {hidden: _fit(hidden, generator) for hidden in HIDDEN}
    falls = fits[HIDDEN[0]] > 10 * fits[HIDDEN[-1]]

    return state(
        "nmn.theory.uat",
        least < 0,
        error < ROUNDING * 1e3 and falls,
        computed={
            "least_output": least,
            "least_output_of_linear_and_relu": least_relu,
            "largest_relative_error_of_three_units_to_the_radial_one": error,
        }
        | {f"largest_error_with_{hidden}_units_and_readout": value for hidden, value in fits.items()},
    )


def exclusive_or() -> Finding:
    """One unit w = (1, -1), no bias: 0 on equal inputs, positive on different ones."""
    x = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.float64)
    h = yat_linear(x, torch.tensor([[1.0, -1]], dtype=torch.float64), epsilon=EPSILON).flatten().tolist()
    printed = [0.0, 1 / (5 + EPSILON), 1 / (1 + EPSILON), 0.0]
    exact = max(abs(a - b) for a, b in zip(h, printed, strict=True)) < ROUNDING
    return state(
        "nmn.ext.xor",
        exact,
        computed={f"response_{a}{b}": value for (a, b), value in zip(((0, 0), (0, 1), (1, 0), (1, 1)), h, strict=True)},
    )
