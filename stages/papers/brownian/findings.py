"""Computed findings on claims about spheres, kernels and chains, on ambiguous sentences, and on training.

The latter are those of the Fisher matrix (section 3.3) and Algorithm 1.  Tokens are drawn once from a seeded generator,
in float64.  An identity holds if its error is only rounding.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from stages.optim.capture import LayerBatch
from stages.optim.cg_fac import conjugate_gradient
from stages.optim.fisher import (
    kronecker_factors,
    kronecker_product,
    kronecker_product_reference,
    per_sample_product,
)
from stages.papers.brownian.walk import (
    attention_transition,
    distance_to_brownian_motion,
    distance_to_limit,
    gaussian_transition,
    mean_squared_distance,
    on_sphere,
    spectrum,
    squared_distances,
)
from stages.papers.finding import Finding, Statements
from stages.rules import Margins

state = Statements(__file__)

ROUNDING = 1e-10
WIDTHS = (64, 192, 768)
NUM_TOKENS = 10
LONG_WALK = 1000
EXACT = 1e-6
"""A solution within this share of the dense one counts as reached."""
DAMPING = 0.003
CODE_ITERATIONS = 10
"""m of the paper's public code; the text gives none."""
SAMPLES, CLASSES, WIDTH = 12, 3, 4
PRICED_WIDTH, COLUMNS = 192, (64, 128 * 64)
"""An output projection; one image of 64 patches, and 128 of them."""

Linear = Callable[[Tensor], Tensor]


def findings(margins: Margins) -> list[Finding]:
    """Return one finding per claim, with the same numbers on every call."""
    return [
        layer_norm_radius(),
        dot_product_on_sphere(),
        gaussian_kernel(),
        cancelled_constant(),
        rows_of_transition(),
        walk_step(),
        softmax_derivative(),
        ito_lemma(),
        printed_row_sum(),
        independent_times(),
        independent_components(),
        heads_cost(),
        token_motion(),
        *fisher_and_its_step(),
        conjugate_gradients_reach_the_solution(),
        no_matrix_is_formed(),
    ]


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _points(width: int) -> Tensor:
    return on_sphere(_draw(NUM_TOKENS, width) * 3 + 1)


def _holds(*errors: float) -> bool:
    return max(errors) < ROUNDING


def _largest(difference: Tensor) -> float:
    return difference.abs().max().item()


def layer_norm_radius() -> Finding:
    def radius_error(normed: Tensor, radius: Tensor | float) -> float:
        return _largest(normed.norm(dim=-1) / radius - 1)

    tokens = {width: _draw(NUM_TOKENS, width) * 3 + 1 for width in WIDTHS}
    plain = max(radius_error(F.layer_norm(v, (width,), eps=0.0), math.sqrt(width)) for width, v in tokens.items())
    width, epsilon = WIDTHS[0], 1e-5
    v = tokens[width] * 1e-3  # variance near ε
    variance = v.var(dim=-1, correction=0)
    with_epsilon = F.layer_norm(v, (width,), eps=epsilon)
    affine = F.layer_norm(
        tokens[width], (width,), weight=1 + 0.2 * _draw(width, seed=1), bias=0.2 * _draw(width, seed=2)
    )
    after_affine = radius_error(affine, math.sqrt(width))

    return state(
        "brownian.identity.lnnorm",
        plain < ROUNDING,
        after_affine < ROUNDING,
        computed={
            "largest_relative_error": plain,
            "relative_error_with_epsilon": radius_error(with_epsilon, math.sqrt(width)),
            "relative_error_of_formula_with_epsilon": radius_error(
                with_epsilon, (width * variance / (variance + epsilon)).sqrt()
            ),
            "relative_error_after_affine": after_affine,
        },
        affine_percent=100 * after_affine,
    )


def dot_product_on_sphere() -> Finding:
    error = max(
        _largest(points @ points.T - (2 * width - squared_distances(points)) / 2) / width
        for width, points in ((width, _points(width)) for width in WIDTHS)
    )
    off = _draw(NUM_TOKENS, WIDTHS[0])
    off_error = _largest(off @ off.T - (2 * WIDTHS[0] - squared_distances(off)) / 2) / WIDTHS[0]
    return state(
        "brownian.identity.dot",
        _holds(error),
        computed={"largest_error_over_d": error, "largest_error_over_d_off_the_sphere": off_error},
    )


def gaussian_kernel() -> Finding:
    errors = []
    for width in WIDTHS:
        v = F.layer_norm(_draw(NUM_TOKENS, width) * 3 + 1, (width,), eps=0.0)
        errors.append(_largest(attention_transition(v, v) - gaussian_transition(v, math.sqrt(width))))
    width = WIDTHS[0]
    v = _points(width)
    gaussian = gaussian_transition(v, math.sqrt(width))
    q, k = (v @ _draw(width, width, seed=seed) / math.sqrt(width) for seed in (1, 2))
    half = v[:, : width // 2]  # one of two heads without projections
    return state(
        "brownian.identity.gauss",
        _holds(*errors),
        computed={
            "largest_difference": max(errors),
            "largest_difference_with_random_projections": _largest(attention_transition(q, k) - gaussian),
            "largest_difference_in_one_of_two_heads": _largest(
                attention_transition(half, half) - gaussian_transition(half, math.sqrt(width // 2))
            ),
        },
    )


def cancelled_constant() -> Finding:
    error = 0.0
    for width in WIDTHS:
        v = _points(width)
        root = math.sqrt(width)
        log_ratio = v @ v.T / root + squared_distances(v) / (2 * root)
        error = max(error, _largest(log_ratio / root - 1))
    return state(
        "brownian.identity.s",
        _holds(error),
        computed={"largest_relative_error_of_log_s": error, "s_at_width_64": math.exp(math.sqrt(64))},
    )


def rows_of_transition() -> Finding:
    transition = gaussian_transition(on_sphere(_draw(4, 16)), 16.0)  # wide enough for off-diagonal mass
    steps = 3
    power = torch.linalg.matrix_power(transition, steps)
    by_paths = torch.zeros_like(power)
    for path in itertools.product(range(4), repeat=steps + 1):
        probability = math.prod(transition[i, j].item() for i, j in itertools.pairwise(path))
        by_paths[path[0], path[-1]] += probability
    row_error, path_error = _largest(power.sum(dim=1) - 1), _largest(power - by_paths)
    row_error = max(row_error, _largest(transition.sum(dim=1) - 1))
    q, k = _draw(2, NUM_TOKENS, 64, seed=1)
    uneven = attention_transition(q, k)
    return state(
        "brownian.markov.rows",
        _holds(row_error, path_error),
        computed={
            "row_sum": uneven.sum(dim=1).mean().item(),
            "largest_row_sum_error": max(row_error, _largest(uneven.sum(dim=1) - 1)),
            "largest_error_of_power_against_all_paths": path_error,
            "smallest_column_sum": uneven.sum(dim=0).min().item(),
            "largest_column_sum": uneven.sum(dim=0).max().item(),
        },
    )


def walk_step() -> Finding:
    transition = attention_transition(*_draw(2, 5, 8, seed=3))
    start = torch.softmax(_draw(5, seed=4), dim=0)
    by_definition = torch.stack(
        [sum((start[i] * transition[i, j] for i in range(5)), start.new_zeros(())) for j in range(5)]
    )
    generator, walkers = torch.Generator().manual_seed(5), 200_000
    at = torch.multinomial(start, walkers, replacement=True, generator=generator)
    cumulative = transition.cumsum(dim=1)[at]
    after = (torch.rand(walkers, 1, generator=generator, dtype=torch.float64) > cumulative).sum(dim=1).clamp(max=4)
    frequencies = torch.bincount(after, minlength=5).double() / walkers
    error = _largest(transition.T @ start - by_definition)
    return state(
        "brownian.walk",
        _holds(error),
        computed={
            "largest_error": error,
            "total_variation_to_simulated_walkers": 0.5 * (transition.T @ start - frequencies).abs().sum().item(),
            "total_variation_without_transpose": 0.5 * (transition @ start - frequencies).abs().sum().item(),
        },
    )


def softmax_derivative() -> Finding:
    a = _draw(7)
    s = a.softmax(dim=0)
    printed = torch.stack([torch.stack([s[i] * (float(i == j) - s[j]) for j in range(7)]) for i in range(7)])
    automatic = torch.autograd.functional.jacobian(lambda x: x.softmax(dim=0), a)
    width = 1e-5
    differences = torch.stack(
        [((a + width * unit).softmax(0) - (a - width * unit).softmax(0)) / (2 * width) for unit in torch.eye(7)], dim=1
    )
    error = _largest(printed - automatic)
    return state(
        "brownian.softmaxgrad",
        _holds(error),
        computed={"largest_error": error, "largest_error_to_differences": _largest(printed - differences)},
    )


def ito_lemma() -> Finding:
    """Integrate equation 7 along paths, for f(t, B) = B³ + t B²."""
    paths, finest = 1000, 2048
    noise = _draw(paths, finest)
    with_term, without = {}, {}
    for steps in (finest // 64, finest // 8, finest):
        dt = 1.0 / steps
        d_b = noise.unflatten(1, (steps, -1)).sum(dim=2) / math.sqrt(finest)
        b = d_b.cumsum(dim=1) - d_b  # at the start of each step
        t = torch.arange(steps, dtype=torch.float64) * dt
        end = b[:, -1] + d_b[:, -1]
        first_order = (b**2 * dt + (3 * b**2 + 2 * t * b) * d_b).sum(dim=1)
        second_order = (0.5 * (6 * b + 2 * t) * dt).sum(dim=1)
        change = end**3 + end**2
        with_term[steps] = (change - first_order - second_order).square().mean().sqrt().item()
        without[steps] = (change - first_order).square().mean().sqrt().item()
    variation = (noise.square().sum(dim=1) / finest).mean().item()
    second_moment = (noise.sum(dim=1).square() / finest).mean().item()
    converges = with_term[finest] < 0.2 * with_term[finest // 64] and without[finest] > 0.5
    return state(
        "brownian.ito",
        converges,
        computed={f"rms_error_at_{steps}_steps": error for steps, error in with_term.items()}
        | {
            "rms_error_without_the_second_order_term": without[finest],
            "mean_of_squared_end": second_moment,
            "standard_error_of_it": math.sqrt(2 / paths),
            "mean_quadratic_variation": variation,
        },
    )


def token_motion() -> Finding:
    width = WIDTHS[0]
    v = _points(width)
    transition = gaussian_transition(v, math.sqrt(width))
    long_power = torch.linalg.matrix_power(transition, LONG_WALK)

    def displacement(power: Tensor) -> float:
        return (power * squared_distances(v)).sum(dim=1).mean().item()

    one, long = displacement(transition), displacement(long_power)
    forever = torch.linalg.matrix_power(transition, 2**24)
    growth = long / (LONG_WALK * one)
    rank = float(torch.linalg.matrix_rank(forever, rtol=1e-6))
    apart = {steps: distance_to_brownian_motion(steps) for steps in (4, 16, 64)}
    staying = transition.diagonal().mean().item()
    jump = math.sqrt(one / (1 - staying))

    return state(
        "brownian.motion",
        rank == NUM_TOKENS,
        math.isclose(growth, 1, rel_tol=0.05),
        apart[64] < 0.01 and apart[4] > 3 * apart[16] > 9 * apart[64],
        computed={
            "mean_probability_of_staying": staying,
            "root_mean_square_of_a_jump": jump,
            "second_eigenvalue": spectrum(transition)[1].item(),
            "mean_squared_displacement_of_one_step": one,
            "mean_squared_displacement_of_long_walk_over_linear_growth": growth,
            "largest_mean_squared_displacement": displacement(forever),
            "mean_squared_distance_of_tokens_after_long_walk_over_start": (
                mean_squared_distance(long_power @ v) / mean_squared_distance(v)
            ).item(),
            "distance_to_rank_one_after_long_walk": distance_to_limit(transition, [LONG_WALK])[0].item(),
            "rank_in_the_limit": rank,
        }
        | {f"distance_to_brownian_motion_at_{steps}_steps": distance for steps, distance in apart.items()},
        width=width,
        num_tokens=NUM_TOKENS,
        radius=math.sqrt(width),
        long_walk=LONG_WALK,
        growth_percent=100 * growth,
        distances=", ".join(f"{100 * distance:.2f}" for distance in apart.values()),
        step_counts=", ".join(map(str, apart)),
    )


def printed_row_sum() -> Finding:
    """Check section 2.2's Σᵢ M_ij = 1, in which i is the row by equation 3."""
    q, k = _draw(2, NUM_TOKENS, 64, seed=1)
    transition = attention_transition(q, k)
    rows, columns = (_largest(transition.sum(dim=axis) - 1) for axis in (1, 0))

    return state(
        "brownian.markov.printed_sum",
        rows < ROUNDING,
        columns < ROUNDING,
        computed={"largest_row_sum_error": rows, "largest_column_sum_error": columns},
    )


def independent_times() -> Finding:
    """Check section 2.4's second property on 20,000 simulated paths, with B_s and B_t at s = 1/4 and t = 1."""
    paths = 20_000
    increments = _draw(paths, 2, seed=6) * torch.tensor([0.25, 0.75], dtype=torch.float64).sqrt()
    early, late = increments[:, 0], increments.sum(dim=1)
    correlation, of_increments = (
        torch.corrcoef(torch.stack(pair))[0, 1].item() for pair in ((early, late), (early, late - early))
    )
    noise = 4 / math.sqrt(paths)

    return state(
        "brownian.motion.independent",
        abs(correlation) < noise,
        abs(of_increments) < noise,
        computed={"correlation_of_two_times": correlation, "correlation_of_increments": of_increments},
    )


def independent_components() -> Finding:
    """Check section 3.2's first observation, before and after the LayerNorm of the second one."""
    width, tokens = WIDTHS[0], 20_000
    raw = _draw(tokens, width, seed=7)

    def mean_correlation(v: Tensor) -> float:
        correlations = torch.corrcoef(v.T)
        return ((correlations.sum() - width) / (width * (width - 1))).item()

    before, after = mean_correlation(raw), mean_correlation(on_sphere(raw))
    error = 4 * math.sqrt(2 / tokens) / width

    return state(
        "brownian.components.independent",
        abs(before) < error,
        abs(after) < error,
        1 / (WIDTHS[-1] - 1) < 0.01,
        computed={"mean_correlation_before": before, "mean_correlation_after": after},
        widest_correlation=-1 / (WIDTHS[-1] - 1),
        widest=WIDTHS[-1],
        tokens=tokens,
        width=width,
    )


def heads_cost() -> Finding:
    """Count the FLOPs of section 3.4.1's products with PyTorch, in a layer of width 256 with 64 tokens."""
    tokens, width, many = 64, 256, 8

    def products(heads: int, head_width: int) -> float:
        q = torch.empty(1, heads, tokens, head_width, device="meta")
        with FlopCounterMode(display=False) as counter:
            (q @ q.mT).softmax(-1) @ q
        return float(counter.get_total_flops())

    one, split, whole = products(1, width), products(many, width // many), products(many, width)

    return state(
        "brownian.heads.cost",
        split < one,
        split < whole,
        computed={"heads_over_one_full_head": split / one, "heads_over_as_many_full_heads": split / whole},
        many=many,
        tokens=tokens,
        width=width,
    )


def _relative(error: Tensor, value: Tensor) -> float:
    return (error.norm() / value.norm()).item()


def _log_probabilities(parameters: Tensor, inputs: Tensor) -> Tensor:
    """Linear, tanh, Linear, log softmax.  inputs [B, D] -> [B, K]."""
    first, second = parameters.split([WIDTH * WIDTH, CLASSES * WIDTH])
    hidden = (inputs @ first.reshape(WIDTH, WIDTH).T).tanh()
    return (hidden @ second.reshape(CLASSES, WIDTH).T).log_softmax(dim=1)


def fisher_and_its_step() -> tuple[Finding, Finding]:
    """Check section 3.3's sentence on KL, and equation 18 with the matrix that follows from it."""
    parameters, inputs = _draw(WIDTH * WIDTH + CLASSES * WIDTH), _draw(SAMPLES, WIDTH, seed=1)
    at_rest = _log_probabilities(parameters, inputs)

    def divergence(there: Tensor) -> Tensor:
        return (at_rest.exp() * (at_rest - _log_probabilities(there, inputs))).sum(dim=1).mean()

    hessian = torch.autograd.functional.hessian(divergence, parameters)
    scores = torch.autograd.functional.jacobian(
        lambda there: _log_probabilities(there, inputs), parameters
    )  # [B, K, n]
    fisher = torch.einsum("bk,bki,bkj->ij", at_rest.exp(), scores, scores) / SAMPLES
    error = _relative(hessian - fisher, fisher)
    elsewhere = torch.autograd.functional.hessian(divergence, parameters + 0.3 * _draw(len(parameters), seed=2))
    labels = torch.arange(SAMPLES).remainder(CLASSES)

    def loss(there: Tensor) -> Tensor:
        return -_log_probabilities(there, inputs)[torch.arange(SAMPLES), labels].mean()

    of_labels = scores[torch.arange(SAMPLES), labels]
    empirical = of_labels.T @ of_labels / SAMPLES
    damped = fisher + DAMPING * torch.eye(len(fisher), dtype=fisher.dtype)
    gradient = torch.autograd.functional.jacobian(loss, parameters)
    step = 0.1 * torch.linalg.solve(damped, gradient)
    plus, minus = ((loss(parameters + sign * step) - loss(parameters)).item() for sign in (1, -1))

    hessian_is_fisher = state(
        "brownian.fisher",
        error < ROUNDING,
        computed={
            "relative_error": error,
            "relative_difference_away_from_the_optimum": _relative(elsewhere - fisher, fisher),
            "relative_difference_of_the_empirical_fisher": _relative(empirical - fisher, fisher),
        },
    )
    step_descends = state(
        "brownian.fisher.step",
        plus < 0,
        minus < 0,
        computed={"loss_change_with_plus_sign": plus, "loss_change_with_minus_sign": minus},
    )
    return hessian_is_fisher, step_descends


def _system(product: Callable[[LayerBatch, Tensor], Tensor]) -> tuple[Linear, Tensor, Tensor]:
    """Return FV of Algorithm 1, b and the dense solution for a layer 8 -> 6 with 32 uneven samples of 4 tokens."""
    inputs = _draw(32, 4, 8, seed=3) * torch.logspace(0, -1, 8, dtype=torch.float64)
    batch = LayerBatch(inputs, _draw(32, 4, 6, seed=4))
    b = torch.einsum("bto,bti->oi", batch.gradients, batch.inputs) / 32

    def damped(v: Tensor) -> Tensor:
        return product(batch, v) + DAMPING * v

    matrix = torch.stack([damped(unit.reshape(b.shape)).flatten() for unit in torch.eye(b.numel()).double()], dim=1)
    return damped, b, torch.linalg.solve(matrix, b.flatten()).reshape(b.shape)


def _exact_residual() -> Fraction:
    """Return ‖r‖² after n steps of Algorithm 1's lines 5-16, in rational numbers, for (F + γI) x = b with n = 6."""
    n, samples = 6, 5
    gradients = [[Fraction((7 * i * i + 3 * i * j + 5 * j) % 11 - 5, 3) for j in range(n)] for i in range(samples)]
    b = [sum((row[j] for row in gradients), Fraction()) / samples for j in range(n)]

    def dot(left: list[Fraction], right: list[Fraction]) -> Fraction:
        return sum((one * other for one, other in zip(left, right, strict=True)), Fraction())

    def damped(v: list[Fraction]) -> list[Fraction]:
        thetas = [dot(row, v) for row in gradients]
        return [
            sum((theta * row[j] for theta, row in zip(thetas, gradients, strict=True)), Fraction()) / samples
            + Fraction(3, 1000) * v[j]
            for j in range(n)
        ]

    r, p = b, b
    for _ in range(n):
        if (rho := dot(r, r)) == 0:
            break
        u = damped(p)
        alpha = rho / dot(p, u)
        r = [one - alpha * other for one, other in zip(r, u, strict=True)]
        beta = dot(r, r) / rho
        p = [one + beta * other for one, other in zip(r, p, strict=True)]
    return dot(r, r)


def conjugate_gradients_reach_the_solution() -> Finding:
    residual = _exact_residual()
    computed = {"squared_residual_after_n_in_rational_numbers": float(residual)}
    for name, product in (("kronecker", kronecker_product), ("per_sample", per_sample_product)):
        damped, b, exact = _system(product)
        n = b.numel()

        def error(m: int, damped: Linear = damped, b: Tensor = b, exact: Tensor = exact) -> float:
            return _relative(conjugate_gradient(damped, b, None, iterations=m, tolerance=0.0) - exact, exact)

        steps = range(1, 2 * n)  # the error falls with every step
        computed |= {
            f"{name}_unknowns": float(n),
            f"{name}_relative_error_after_n": error(n),
            f"{name}_iterations_to_1e-6": 1.0 + bisect_left(steps, True, key=lambda m: error(m) < EXACT),
            f"{name}_relative_error_after_10": error(CODE_ITERATIONS),
        }
    return state("brownian.cgfac.converge", residual == 0, computed=computed)


def no_matrix_is_formed() -> Finding:
    """Check the products, and compare their cost with that of factors, which depends on the number of columns."""
    batch = LayerBatch(_draw(32, 4, 8, seed=3), _draw(32, 4, 6, seed=4))
    v = _draw(6, 8, seed=5)
    input_factor, gradient_factor = kronecker_factors(batch)
    by_factors = gradient_factor @ v @ input_factor
    error = max(
        _relative(product(batch, v) - by_factors, by_factors)
        for product in (kronecker_product, kronecker_product_reference)
    )
    few, many = map(_price, COLUMNS)
    return state(
        "brownian.cgfac.matrixfree",
        error < ROUNDING,
        computed={
            "relative_difference_to_factors": error,
            f"multiplications_over_factors_with_{COLUMNS[0]}_columns": few,
            f"multiplications_over_factors_with_{COLUMNS[1]}_columns": many,
        },
        priced_width=PRICED_WIDTH,
        few=few,
        few_columns=COLUMNS[0],
        many=many,
        many_columns=COLUMNS[1],
    )


def _price(columns: int) -> float:
    """Return multiplications of ten products by ((v a) aᵀ), relative to those of both factors plus ten products."""
    n, m = PRICED_WIDTH, CODE_ITERATIONS
    return m * 4 * columns * n**2 / (columns * 2 * n**2 + m * 2 * n**3)
