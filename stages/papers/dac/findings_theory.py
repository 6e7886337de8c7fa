"""Findings on the paper's identities and theorems, computed from the operators and from its constructions.

These are Theorem C.1, Figure 7, Remark 2.1 and the approximation by equation 6:

    DAC unit, its input x replicated k times     f(x) = Σ_j w_j φ(b_j + x)                     2k numbers
    standard network with one hidden layer       f(x) = d + Σ_j c_j φ(a_j x + b_j)             3k + 1 numbers

A continuous piecewise linear function with k pieces is given by k - 1 kinks, k slopes and the zero of its first piece.
All in float64.  N points, k pieces or units.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops.dac import dac_conv2d, dac_linear
from stages.papers.finding import Finding, Statements


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
    """Return w, b [k] of a unit that equals `function` right of its zero, which must be left of all kinks."""
    w = torch.cat([function.slopes[:1], function.slopes.diff()])
    return w, -torch.cat([torch.tensor([function.zero], dtype=w.dtype), function.kinks])


def standard_parameters(function: PiecewiseLinear) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a, b, c [k] and d [1] of a standard network that equals `function` everywhere; two pieces or more.

    Unit j opens to the right at kink j; the last one opens to the left at the first kink and has the first slope.
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
    """Return w, b [n] of a DAC unit through `values` [n] at n even points of [0, 1]; it is 0 below -1 / (n - 1)."""
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

    If x_1 + x_2 ≥ -2 it is 1 - |x_1| - |x_2|; otherwise it is at most -1.
    """
    x_1, x_2 = points.unbind(1)
    return -1 + (x_1 + x_2 + 2).relu() - 2 * x_1.relu() - 2 * x_2.relu()


def endless_direction(weight: Tensor, scale: Tensor) -> Tensor:
    """Return a direction in which c_0 + Σ_i c_i φ(w_i x + b_i) never falls, for two units of two inputs.

    Moving only the first unit's sum, by the sign of its c_1, can only raise c_1 φ(·).  So a function that is not
    negative at a point is not negative on a whole ray.  weight: [2, 2], invertible; scale: c [2]; returns [2].
    """
    unit = torch.tensor([1.0, 0.0], dtype=weight.dtype)
    return torch.linalg.solve(weight, unit * (1 if scale[0] >= 0 else -1))


state = Statements(__file__)

PIECES = range(2, 9)
PRINTED_UNITS = 4


def theory() -> list[Finding]:
    """Section 4's special cases, section 6, appendix B and appendix C."""
    return [
        *(reduction(), remark_2_1(), backpropagation(), approximation(), error_estimate()),
        *(theorem_1(), theorem_2(), theorem_3(), remark_c2()),
        *(figure_7a(), figure_7b(), figure_7b_two_units(), figure_7b_units()),
    ]


EXACT = 1e-9  # largest difference between float64 sums of this size


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _draw(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = _generator()
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def _largest(x: Tensor) -> float:
    return x.abs().max().item()


def reduction() -> Finding:
    x, w, b = _draw((2, 3, 6, 6), (3, 1, 3, 3), (3, 1))
    shared = (x + b.view(1, 3, 1, 1)).relu()
    depthwise = torch.cat([dac_conv2d(x[:, [j]], w[[j]], b[[j]], 1, 1) for j in range(3)], 1)
    one_unit = dac_conv2d(x, w.transpose(0, 1), b.T, 1, 1)
    computed = {
        "depthwise_difference": _largest(depthwise - F.conv2d(shared, w, padding=1, groups=3)),
        "one_unit_difference": _largest(one_unit - F.conv2d(shared, w.transpose(0, 1), padding=1)),
    }
    return state("dac.depthwise", max(computed.values()) < EXACT, computed=computed)


def remark_2_1() -> Finding:
    x = torch.linspace(-3, 3, 601, dtype=torch.float64)
    shared, unshared = 0.5, 1.0
    composed = (unshared + (x + shared).relu()).relu()
    best = min(_largest(composed - (x + shift / 100).relu()) for shift in range(-400, 401))
    z, a, w, b, next_w, next_b = _draw((50, 7), (7,), (5, 7), (5, 7), (3, 5), (3, 5))
    both = dac_linear(dac_linear((z + a).relu(), w, b), next_w, next_b)
    constants = (w * b.clamp(min=0)).sum(1)
    joined = _largest(both - dac_linear(dac_linear(z, w, a + b.clamp(max=0)), next_w, next_b + constants))

    return state(
        "dac.prepost",
        best < EXACT,
        joined < EXACT,
        computed={"difference_of_two_layers": joined, "least_difference_of_one_activation_with_positive_bias": best},
        unshared=unshared,
    )


def backpropagation() -> Finding:
    leaves = [tensor.requires_grad_() for tensor in _draw((7, 5), (4, 5), (4, 5))]
    (upstream,) = _draw((7, 4))
    automatic = torch.autograd.grad((dac_linear(*leaves) * upstream).sum(), leaves)
    x, w, b = (leaf.detach() for leaf in leaves)
    pre = b + x[:, None]  # [N, n, m]
    mask, g = (pre > 0).double(), upstream[:, :, None]
    printed = ((w * mask * g).sum(1), (pre.relu() * g).sum(0), (w * mask * g).sum(0))
    difference = max(_largest(a - p) for a, p in zip(automatic, printed, strict=True))
    return state("dac.eq7", difference < EXACT, computed={"largest_difference": difference})


def approximation() -> Finding:
    x = torch.linspace(0, 1, 2001, dtype=torch.float64)
    target = (7 * x).cos()
    errors = {}
    for n in (8, 32, 128):
        w, b = interpolating_unit((7 * torch.linspace(0, 1, n, dtype=torch.float64)).cos())
        errors[f"error_dac_n{n}"] = _largest(dac_unit(x, w, b) - target)
    falls = list(errors.values())
    return state(
        "dac.eq6",
        all(10 * after < before for before, after in pairwise(falls)),
        computed=errors | {"least_error_of_a_standard_unit": -target.min().item()},
    )


def error_estimate() -> Finding:
    """Compute Var(T̄) from the covariance of the 25 errors, and the expectations of both estimates from the same."""
    fold, epoch = torch.arange(25) // 5, torch.arange(25) % 5
    same_fold = (fold[:, None] == fold).double()
    mean = torch.full((25,), 1 / 25, dtype=torch.float64)
    rows = torch.eye(25, dtype=torch.float64)
    by_epoch = torch.stack([(epoch == j).double() / 5 for j in range(5)])

    def expected(deviations: Tensor, covariance: Tensor) -> float:
        return torch.einsum("ki,ij,kj->", deviations, covariance, deviations).item() / 4

    numbers = {}
    for name, covariance in (("sigma", same_fold), ("tau", torch.eye(25, dtype=torch.float64))):
        numbers[f"variance_per_{name}_squared"] = (mean @ covariance @ mean).item()
        spread = expected(rows[epoch == 2] - mean, covariance) / 5
        numbers[f"estimate_per_{name}_squared"] = spread + expected(by_epoch - mean, covariance) / 5
    exact = (
        abs(numbers["variance_per_sigma_squared"] - 1 / 5) + abs(numbers["variance_per_tau_squared"] - 1 / 25) < EXACT
    )
    conservative = all(
        numbers[f"estimate_per_{name}_squared"] > numbers[f"variance_per_{name}_squared"] - EXACT
        for name in ("sigma", "tau")
    )
    return state("dac.appB", exact and conservative, computed=numbers)


def theorem_1() -> Finding:
    left = torch.tensor([-1000.0], dtype=torch.float64)
    generator, error, unit_left = _generator(), 0.0, 0.0
    for k in PIECES:
        function = random_piecewise_linear(k, generator)
        w, b = dac_parameters(function)
        right = torch.linspace(function.zero, k + 5, 500, dtype=torch.float64)
        error = max(error, _largest(dac_unit(right, w, b) - function(right)))
        unit_left = max(unit_left, _largest(dac_unit(left, w, b)))
    nearest, with_one_more = _nearest_to_a_line(), _error_with_one_copy_more()

    return state(
        "dac.thm.c1.1",
        unit_left != 0,
        nearest < EXACT,
        computed={
            "parameters_k8": float(2 * len(dac_parameters(random_piecewise_linear(8, _generator()))[0])),
            "error_right_of_the_zero": error,
            "unit_at_minus_1000": unit_left,
            "least_error_of_one_copy_for_a_line_with_a_zero_inside": nearest,
            "error_with_one_copy_more_on_a_bounded_interval": with_one_more,
        },
    )


def _nearest_to_a_line() -> float:
    """Minimum over w and b of the largest error of w φ(b + x) for x - 1 on [0, 2]."""
    w, b = torch.linspace(-4, 4, 161).double(), torch.linspace(-4, 4, 161).double()
    x = torch.linspace(0, 2, 41).double()
    error = (w[:, None, None] * (b[:, None] + x).relu() - (x - 1)).abs()
    return error.amax(-1).min().item()


def _error_with_one_copy_more() -> float:
    """Largest error on [-5, k + 5] of k + 1 copies, two of them with kinks left of it, for functions of PL_k."""
    generator, error = _generator(), 0.0
    for k in PIECES:
        function = random_piecewise_linear(k, generator)
        x = torch.linspace(-5, k + 5, 500, dtype=torch.float64)
        starts = torch.tensor([6.0, 7.0], dtype=torch.float64)
        line = torch.stack([function.slopes[0], -function.slopes[0] * function.zero])
        first = torch.linalg.solve(torch.stack([torch.ones_like(starts), starts]), line)
        unit = dac_unit(x, torch.cat([first, function.slopes.diff()]), torch.cat([starts, -function.kinks]))
        error = max(error, _largest(unit - function(x)))
    return error


def theorem_2() -> Finding:
    x = torch.linspace(-3, 3, 601, dtype=torch.float64)
    w, b = _draw((200, 5), (200, 1))
    replicated = ((w[:, None] * x[:, None]).sum(2) + b).relu()
    single = (w.sum(1, keepdim=True) * x + b).relu()
    difference, least = _largest(replicated - single), single.min().item()
    bend = _bend_of_the_best_line()

    return state(
        "dac.thm.c1.2",
        difference < EXACT and least >= 0,
        difference < EXACT and bend > 0.1,
        False,
        computed={
            "difference_by_replication": difference,
            "least_output": least,
            "least_error_of_a_line_for_abs_x": bend,
        },
    )


def _bend_of_the_best_line() -> float:
    """Minimum over lines of the largest error for |x| on [-1, 1]."""
    x = torch.linspace(-1, 1, 41, dtype=torch.float64)
    w, b = (torch.linspace(-2, 2, 81, dtype=torch.float64) for _ in range(2))
    return (w[:, None, None] * x + b[:, None] - x.abs()).abs().amax(-1).min().item()


def theorem_3() -> Finding:
    generator, error = _generator(), 0.0
    for k in PIECES:
        function = random_piecewise_linear(k, generator)
        x = torch.linspace(-5, k + 5, 500, dtype=torch.float64)
        parameters = standard_parameters(function)
        error = max(error, _largest(standard_network(x, *parameters) - function(x)))
    one, line = torch.ones(1, dtype=torch.float64), torch.linspace(-5, 5, 101, dtype=torch.float64)
    a, none = torch.cat([one, -one]), torch.zeros(2, dtype=torch.float64)
    two_units = _largest(standard_network(line, a, none, a, torch.zeros(1, dtype=torch.float64)) - line)

    return state(
        "dac.thm.c1.3",
        error < EXACT,
        False,
        False,
        computed={
            "parameters_k8": float(sum(p.numel() for p in parameters)),
            "largest_error": error,
            "error_of_two_units_for_a_line": two_units,
        },
    )


def remark_c2() -> Finding:
    """Count the independent changes of PL_k's functions with slopes, kinks and a constant."""
    missing = 0
    for k in PIECES:
        slopes = torch.randn(k, generator=_generator(), dtype=torch.float64)
        kinks = torch.arange(k - 1, dtype=torch.float64)
        x = torch.linspace(-2, k, 20 * k, dtype=torch.float64)

        def values(slopes: Tensor, first: Tensor, kinks: Tensor, x: Tensor = x) -> Tensor:
            return first + slopes[0] * x + ((x[:, None] - kinks).clamp(min=0) * slopes.diff()).sum(1)

        changes = torch.autograd.functional.jacobian(values, (slopes, torch.zeros(1).double(), kinks))
        missing += 2 * k - int(torch.linalg.matrix_rank(torch.cat(changes, 1)))
    return state("dac.thm.c2", missing == 0, computed={"ways_missing_of_2k": float(missing)})


def figure_7a() -> Finding:
    first, middle, last = separating_unit(SEPARATED_POINTS).tolist()
    return state("dac.fig7a", middle < min(first, last), computed={"first": first, "middle": middle, "last": last})


def _grid() -> Tensor:
    axis = torch.arange(-96, 97, dtype=torch.float64) / 32  # exact numbers, so zeros are exact
    return torch.cartesian_prod(axis, axis)


def figure_7b() -> Finding:
    grid = _grid()
    norm, value = grid.abs().sum(1), square_by_dac(grid)
    zeros = grid[(norm > 1) & (value == 0)]
    on_rays = ((zeros.min(1).values <= -1) & (zeros.max(1).values == 0)).double().mean()
    inside, outside = _largest((value - (1 - norm))[norm <= 1]), value[norm > 1].max().item()
    is_as_printed_inside = inside < EXACT

    return state(
        "dac.fig7b",
        is_as_printed_inside and outside < 0,
        is_as_printed_inside and bool(((value > 0) == (norm < 1)).all()) and on_rays.item() == 1,
        computed={
            "difference_inside": inside,
            "largest_outside": outside,
            "zeros_outside": float(len(zeros)),
            "share_of_them_on_two_rays": on_rays.item(),
        },
    )


def figure_7b_two_units() -> Finding:
    """Random pairs of standard units: from every point found in the set, a ray stays in the set."""
    weights, biases, scales, offsets, points = _draw((500, 2, 2), (500, 2), (500, 2), (500,), (500, 64, 2))
    steps = torch.tensor([0.0, 1.0, 10.0, 1000.0], dtype=torch.float64)
    nets, kept = 0, 0
    for weight, bias, scale, offset, candidates in zip(weights, biases, scales, offsets, points, strict=True):

        def value(x: Tensor, w: Tensor = weight, b: Tensor = bias, c: Tensor = scale, c_0: Tensor = offset) -> Tensor:
            return c_0 + (x @ w.T + b).relu() @ c

        start = candidates[value(candidates).argmax()]
        if value(start) >= 0:
            nets += 1
            ray = start + steps[:, None] * endless_direction(weight, scale)
            kept += int((value(ray) >= -1e-9).all())
    return state(
        "dac.fig7b.standard",
        kept == nets,
        computed={"networks_with_a_point_in_the_set": float(nets), "of_them_with_a_ray_in_it": float(kept)},
    )


def figure_7b_units() -> Finding:
    grid = _grid()
    norm, three = grid.abs().sum(1), square_by_three_units(grid)
    inside, outside = _largest((three - (1 - norm))[norm <= 1]), three[norm > 1].max().item()
    three_do = inside < EXACT and outside < 0
    step = torch.tensor([[-0.1], [0.0], [0.1]], dtype=torch.float64)
    bends = 0
    for coordinate in (0, 1):
        for kink in (-1.0, 0.0):
            points = torch.full((3, 2), 0.5, dtype=torch.float64)
            points[:, coordinate] = kink + step[:, 0]
            before, at, after = square_by_dac(points).tolist()
            bends += abs(before - 2 * at + after) > EXACT
    lines = bends

    return state(
        "dac.fig7b.units",
        (not three_do, 3.0),
        (lines == PRINTED_UNITS, float(lines)),
        computed={
            "units_that_separate": 3.0 if three_do else 4.0,
            "lines_of_kinks": float(lines),
            "difference_inside": inside,
            "largest_outside": outside,
        },
        ours=float(lines),
        lines=lines,
    )
