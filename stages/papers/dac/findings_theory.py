"""Findings on the paper's identities and theorems, computed from the operators and the constructions in `toys`."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops.dac import dac_conv2d, dac_linear
from stages.papers.dac import toys
from stages.papers.finding import Finding, Reading

PIECES = range(2, 9)
PRINTED_UNITS = 4


def theory() -> list[Finding]:
    """Section 4's special cases, section 6, appendix B and appendix C."""
    return [
        *(reduction(), remark_2_1(), backpropagation(), approximation(), error_estimate()),
        *(theorem_1(), theorem_2(), theorem_3(), remark_c2()),
        *(figure_7a(), figure_7b(), figure_7b_two_units(), figure_7b_units()),
    ]


EXACT = 1e-9  # the most by which float64 sums of this size may differ


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
    return Finding(
        claim="dac.depthwise",
        holds=max(computed.values()) < EXACT,
        computed=computed,
        explanation="With one output for each input channel, or one output in all, every bias has an input channel of "
        "its own, so a standard layer with shared biases gives the same numbers.",
    )


def remark_2_1() -> Finding:
    x = torch.linspace(-3, 3, 601, dtype=torch.float64)
    shared, unshared = 0.5, 1.0
    composed = (unshared + (x + shared).relu()).relu()
    best = min(_largest(composed - (x + shift / 100).relu()) for shift in range(-400, 401))
    joined = _joined_biases()
    readings = (
        Reading(
            name="of one activation alone",
            text='φ(b + φ(z + a)) "is equivalent to a pre-activation" φ(z + c) for some c: so for b ≤ 0, with c = a + '
            f"b. For b = {unshared:g} no c comes nearer than {best:.2g}: the left side doesn't vanish for small z.",
            holds=best < EXACT,
        ),
        Reading(
            name="in its network",
            text='The equivalence is "with modified coefficients", of which the next layer\'s biases are some: φ(b + '
            "φ(z + a)) is φ(z + a + min(b, 0)) + max(b, 0), and the constants, times their weights, join those biases. "
            f"Two layers of random weights and biases of both signs agree to {joined:.0e}.",
            holds=joined < EXACT,
        ),
    )
    return Finding(
        claim="dac.prepost",
        computed={"difference_of_two_layers": joined, "least_difference_of_one_activation_with_positive_bias": best},
        explanation="φ(b + φ(z + a)) = φ(z + a + min(b, 0)) + max(b, 0). The constant is 0 for b ≤ 0, and else "
        "joins the biases of the layer that follows.",
        readings=readings,
    )


def _joined_biases() -> float:
    """Largest difference between two DAC layers behind a post-activation and two without it, their biases modified."""
    z, a, w, b, next_w, next_b = _draw((50, 7), (7,), (5, 7), (5, 7), (3, 5), (3, 5))
    both = dac_linear(dac_linear((z + a).relu(), w, b), next_w, next_b)
    constants = (w * b.clamp(min=0)).sum(1)
    return _largest(both - dac_linear(dac_linear(z, w, a + b.clamp(max=0)), next_w, next_b + constants))


def backpropagation() -> Finding:
    leaves = [tensor.requires_grad_() for tensor in _draw((7, 5), (4, 5), (4, 5))]
    (upstream,) = _draw((7, 4))
    automatic = torch.autograd.grad((dac_linear(*leaves) * upstream).sum(), leaves)
    x, w, b = (leaf.detach() for leaf in leaves)
    pre = b + x[:, None]  # [N, n, m]
    mask, g = (pre > 0).double(), upstream[:, :, None]
    printed = ((w * mask * g).sum(1), (pre.relu() * g).sum(0), (w * mask * g).sum(0))
    difference = max(_largest(a - p) for a, p in zip(automatic, printed, strict=True))
    return Finding(
        claim="dac.eq7",
        holds=difference < EXACT,
        computed={"largest_difference": difference},
        explanation="Equation 7 written out against automatic differentiation of the operator, in float64.",
    )


def approximation() -> Finding:
    x = torch.linspace(0, 1, 2001, dtype=torch.float64)
    target = (7 * x).cos()
    errors = {}
    for n in (8, 32, 128):
        w, b = toys.interpolating_unit((7 * torch.linspace(0, 1, n, dtype=torch.float64)).cos())
        errors[f"error_dac_n{n}"] = _largest(toys.dac_unit(x, w, b) - target)
    falls = list(errors.values())
    return Finding(
        claim="dac.eq6",
        # Four times the copies, a tenth of the error at most: the law n⁻² gives a sixteenth.
        holds=all(10 * after < before for before, after in pairwise(falls)),
        computed=errors | {"least_error_of_a_standard_unit": -target.min().item()},
        explanation="Largest error on [0, 1] for cos 7x: it falls as n⁻² with the copies of the input.  Left of all "
        "kinks the unit is 0, so the functions are those on intervals bounded from the left; a standard unit is one "
        "ReLU, never below 0.",
    )


def error_estimate() -> Finding:
    """Var(T̄) from the covariance of the 25 errors; expectations of the two estimates from the same covariance."""
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
    return Finding(
        claim="dac.appB",
        holds=exact and conservative,
        computed=numbers,
        explanation="The model's covariance gives σ²/5 + τ²/25 exactly; what appendix B puts in for the two terms is "
        "on average as much of σ² and more of τ², so it is conservative as the text says.",
    )


def theorem_1() -> Finding:
    left = torch.tensor([-1000.0], dtype=torch.float64)
    generator, error, unit_left = _generator(), 0.0, 0.0
    for k in PIECES:
        function = toys.random_piecewise_linear(k, generator)
        w, b = toys.dac_parameters(function)
        right = torch.linspace(function.zero, k + 5, 500, dtype=torch.float64)
        error = max(error, _largest(toys.dac_unit(right, w, b) - function(right)))
        unit_left = max(unit_left, _largest(toys.dac_unit(left, w, b)))
    nearest, with_one_more = _nearest_to_a_line(), _error_with_one_copy_more()
    readings = (
        Reading(
            name="for every input",
            text='"one-layer fully connected DAC-enhanced neural network" of k copies gives every function with k '
            '"linear components" on the whole line. Left of all its kinks the unit is 0, and f(x) = x, k = 1, is not.',
            holds=unit_left != 0,
        ),
        Reading(
            name="for inputs of a bounded interval",
            text='Section 6 speaks of "a universal approximator of a large class of functions", so take functions on '
            "[0, 2] only, and approximations. One copy, w φ(b + x), has the sign of w everywhere, and f(x) = x - 1, k "
            f"= 1, changes it: the best of a grid of w and b is {nearest:.2f} off. One copy more would do.",
            holds=nearest < EXACT,
        ),
    )
    return Finding(
        claim="dac.thm.c1.1",
        computed={
            "parameters_k8": float(2 * len(toys.dac_parameters(toys.random_piecewise_linear(8, _generator()))[0])),
            "error_right_of_the_zero": error,
            "unit_at_minus_1000": unit_left,
            "least_error_of_one_copy_for_a_line_with_a_zero_inside": nearest,
            "error_with_one_copy_more_on_a_bounded_interval": with_one_more,
        },
        explanation="With 2k numbers the unit represents every function whose first piece has a zero, from that zero "
        "on. Left of all its kinks it is 0, so the others of PLₖ, among them the line f(x) = x, are left out. On a "
        "bounded interval k + 1 copies do, with 2k + 2 numbers: for k > 1 fewer than the 3k + 1 of standard units.",
        readings=readings,
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
        function = toys.random_piecewise_linear(k, generator)
        x = torch.linspace(-5, k + 5, 500, dtype=torch.float64)
        starts = torch.tensor([6.0, 7.0], dtype=torch.float64)
        line = torch.stack([function.slopes[0], -function.slopes[0] * function.zero])
        first = torch.linalg.solve(torch.stack([torch.ones_like(starts), starts]), line)
        unit = toys.dac_unit(x, torch.cat([first, function.slopes.diff()]), torch.cat([starts, -function.kinks]))
        error = max(error, _largest(unit - function(x)))
    return error


def theorem_2() -> Finding:
    x = torch.linspace(-3, 3, 601, dtype=torch.float64)
    w, b = _draw((200, 5), (200, 1))
    replicated = ((w[:, None] * x[:, None]).sum(2) + b).relu()
    single = (w.sum(1, keepdim=True) * x + b).relu()
    difference, least = _largest(replicated - single), single.min().item()
    bend = _bend_of_the_best_line()
    readings = (
        Reading(
            name="with the last activation",
            text="The proof writes the layer as φ(wx + b). It is never negative, and PL_k has functions that are.",
            holds=difference < EXACT and least >= 0,
        ),
        Reading(
            name="without the last activation, two pieces or more",
            text='Section 6: "one usually has to remove that last activation", as point 3 does. The layer is then '
            f"wx + b, which has no kink: |x| stays {bend:.2g} away on [-1, 1].",
            holds=difference < EXACT and bend > 0.1,
        ),
        Reading(
            name="without the last activation, every k",
            text='k is "a positive integer": for k = 1, PL_1 is the set of all lines, and wx + b is every line.',
            holds=False,
        ),
    )
    return Finding(
        claim="dac.thm.c1.2",
        computed={
            "difference_by_replication": difference,
            "least_output": least,
            "least_error_of_a_line_for_abs_x": bend,
        },
        explanation="Replicated inputs only add up to another weight. With its last activation, φ(wx + b) is never "
        "negative; without it, wx + b has no kink, and represents PL_k for k = 1 alone.",
        readings=readings,
    )


def _bend_of_the_best_line() -> float:
    """Minimum over lines of the largest error for |x| on [-1, 1]."""
    x = torch.linspace(-1, 1, 41, dtype=torch.float64)
    w, b = (torch.linspace(-2, 2, 81, dtype=torch.float64) for _ in range(2))
    return (w[:, None, None] * x + b[:, None] - x.abs()).abs().amax(-1).min().item()


def theorem_3() -> Finding:
    generator, error = _generator(), 0.0
    for k in PIECES:
        function = toys.random_piecewise_linear(k, generator)
        x = torch.linspace(-5, k + 5, 500, dtype=torch.float64)
        parameters = toys.standard_parameters(function)
        error = max(error, _largest(toys.standard_network(x, *parameters) - function(x)))
    one, line = torch.ones(1, dtype=torch.float64), torch.linspace(-5, 5, 101, dtype=torch.float64)
    a, none = torch.cat([one, -one]), torch.zeros(2, dtype=torch.float64)
    two_units = _largest(toys.standard_network(line, a, none, a, torch.zeros(1, dtype=torch.float64)) - line)
    readings = (
        Reading(
            name="without the last activation, two pieces or more",
            text="k hidden units with 3k + 1 numbers represent random functions of 2 to 8 pieces everywhere. k - 1 "
            "units give 2k - 1 kinks, changes of slope and constants, one less than the numbers of PL_k.",
            holds=error < EXACT,
        ),
        Reading(
            name="without the last activation, every k",
            text='k is "a positive integer": for k = 1 a line takes one layer, wx + b, and 2 numbers; with two '
            "layers it takes two units, 7 numbers, φ(x) - φ(-x) for x, since one is constant on one side. 3k + 1 is 4.",
            holds=False,
        ),
        Reading(
            name="with the last activation",
            text="The proof of point 2 and section 6's two-layer network end with φ. Nothing below 0 comes out of it, "
            "so no number of units represents PL_k.",
            holds=False,
        ),
    )
    return Finding(
        claim="dac.thm.c1.3",
        computed={
            "parameters_k8": float(sum(p.numel() for p in parameters)),
            "largest_error": error,
            "error_of_two_units_for_a_line": two_units,
        },
        explanation="Without the last activation and for two pieces or more, k units with 3k + 1 numbers represent "
        "PL_k, and fewer don't. Point 2 is proved with that activation, with which this point is false; for k = 1, a "
        "line, it is false as well.",
        readings=readings,
    )


def remark_c2() -> Finding:
    """Number of independent ways in which functions of PL_k change with slopes, kinks and a constant."""
    missing = 0
    for k in PIECES:
        slopes = torch.randn(k, generator=_generator(), dtype=torch.float64)
        kinks = torch.arange(k - 1, dtype=torch.float64)
        x = torch.linspace(-2, k, 20 * k, dtype=torch.float64)

        def values(slopes: Tensor, first: Tensor, kinks: Tensor, x: Tensor = x) -> Tensor:
            return first + slopes[0] * x + ((x[:, None] - kinks).clamp(min=0) * slopes.diff()).sum(1)

        changes = torch.autograd.functional.jacobian(values, (slopes, torch.zeros(1).double(), kinks))
        missing += 2 * k - int(torch.linalg.matrix_rank(torch.cat(changes, 1)))
    return Finding(
        claim="dac.thm.c2",
        holds=missing == 0,
        computed={"ways_missing_of_2k": float(missing)},
        explanation="Random functions of 2 to 8 pieces change in 2k independent ways with their slopes and intercepts. "
        "That DAC units need no more numbers is Theorem C.1 (1), and judged there.",
    )


def figure_7a() -> Finding:
    first, middle, last = toys.separating_unit(toys.SEPARATED_POINTS).tolist()
    return Finding(
        claim="dac.fig7a",
        holds=middle < min(first, last),
        computed={"first": first, "middle": middle, "last": last},
        explanation="Three points on a line, the outer two of one class: the unit gives both more than the middle "
        "one.  An affine map gives the middle one the mean of the outer two, so no line separates them.",
    )


def _grid() -> Tensor:
    axis = torch.arange(-96, 97, dtype=torch.float64) / 32  # exact, so that a zero is a zero
    return torch.cartesian_prod(axis, axis)


def figure_7b() -> Finding:
    grid = _grid()
    norm, value = grid.abs().sum(1), toys.square_by_dac(grid)
    zeros = grid[(norm > 1) & (value == 0)]
    on_rays = ((zeros.min(1).values <= -1) & (zeros.max(1).values == 0)).double().mean()
    inside, outside = _largest((value - (1 - norm))[norm <= 1]), value[norm > 1].max().item()
    is_as_printed_inside = inside < EXACT
    readings = (
        Reading(
            name="at every point",
            text='"is negative outside": on the rays (x₁ ≤ -1, x₂ = 0) and (x₁ = 0, x₂ ≤ -1) it is exactly 0, and so '
            "isn't.",
            holds=is_as_printed_inside and outside < 0,
        ),
        Reading(
            name="as a separation",
            text='The units "can separate the blue from the green points", by whether the value is positive: it is in '
            "the open square and nowhere else. It is 0 on the square's edge and the two rays, which have no area, and "
            "negative elsewhere outside.",
            holds=is_as_printed_inside and bool(((value > 0) == (norm < 1)).all()) and on_rays.item() == 1,
        ),
    )
    return Finding(
        claim="dac.fig7b",
        computed={
            "difference_inside": inside,
            "largest_outside": outside,
            "zeros_outside": float(len(zeros)),
            "share_of_them_on_two_rays": on_rays.item(),
        },
        explanation="Inside the square it is 1 - |x₁| - |x₂| as printed, and {g(f(x)) > 0} is the open square, which "
        "no standard layer of two units has.  Outside it is negative but on two rays, where it is 0; {g(f(x)) ≥ 0} has "
        "them.",
        readings=readings,
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
            ray = start + steps[:, None] * toys.endless_direction(weight, scale)
            kept += int((value(ray) >= -1e-9).all())
    return Finding(
        claim="dac.fig7b.standard",
        holds=kept == nets,
        computed={"networks_with_a_point_in_the_set": float(nets), "of_them_with_a_ray_in_it": float(kept)},
        explanation="Two units of two inputs can be moved one at a time (or not at all, when their weights are "
        "parallel): moving the first by the sign of its outgoing weight never lowers the output, so no set {≥ 0} is "
        "bounded.",
    )


def figure_7b_units() -> Finding:
    grid = _grid()
    norm, three = grid.abs().sum(1), toys.square_by_three_units(grid)
    inside, outside = _largest((three - (1 - norm))[norm <= 1]), three[norm > 1].max().item()
    three_do = inside < EXACT and outside < 0
    lines = _lines_of_kinks()
    readings = (
        Reading(
            name="of the separation",
            text='"to achieve the same result" is to have the square where the value is positive. Three units do: -1 + '
            "φ(x₁ + x₂ + 2) - 2φ(x₁) - 2φ(x₂) is 1 - |x₁| - |x₂| inside and negative outside.",
            holds=not three_do,
            ours=3.0,
        ),
        Reading(
            name="of the function",
            text='"the same result" is the same g(f(x)). It has kinks along '
            f"{lines} lines, x₁ and x₂ = -1 and 0, and a standard unit has one along one line; its own terms, "
            "φ(1 + x₁), φ(1 + x₂), φ(x₁), φ(x₂), are four such units.",
            holds=lines == PRINTED_UNITS,
            ours=float(lines),
        ),
    )
    return Finding(
        claim="dac.fig7b.units",
        computed={
            "units_that_separate": 3.0 if three_do else 4.0,
            "lines_of_kinks": float(lines),
            "difference_inside": inside,
            "largest_outside": outside,
        },
        explanation="The printed function takes four standard units, one for each line of kinks; to separate the "
        "square from its outside three are enough.",
        ours=float(lines),
        readings=readings,
    )


def _lines_of_kinks() -> int:
    """The number of lines, of x₁, x₂ = -1, 0, on which the printed function bends, at a point where no other does."""
    step = torch.tensor([[-0.1], [0.0], [0.1]], dtype=torch.float64)
    bends = 0
    for coordinate in (0, 1):
        for kink in (-1.0, 0.0):
            points = torch.full((3, 2), 0.5, dtype=torch.float64)
            points[:, coordinate] = kink + step[:, 0]
            before, at, after = toys.square_by_dac(points).tolist()
            bends += abs(before - 2 * at + after) > EXACT
    return bends
