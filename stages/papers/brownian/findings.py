"""Computed findings on claims about spheres, kernels and chains, and on ambiguous sentences.

Findings on training are in `findings_fisher`.  Tokens are drawn once from a seeded generator, in float64.  An identity
holds if its error is only rounding.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from stages.papers.brownian.findings_fisher import fisher_findings
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
        *fisher_findings(),
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
