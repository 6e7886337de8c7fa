"""Computed findings on the paper's claims about training: Fisher matrix (section 3.3) and Algorithm 1."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from stages.optim.capture import LayerBatch
from stages.optim.cg_fac import conjugate_gradient
from stages.optim.fisher import (
    kronecker_factors,
    kronecker_product,
    kronecker_product_reference,
    per_sample_product,
)
from stages.papers.finding import Finding, Statements

state = Statements(__file__)

ROUNDING = 1e-10
EXACT = 1e-6
"""A solution within this share of the dense one counts as reached."""
DAMPING = 0.003
CODE_ITERATIONS = 10
"""m of the paper's public code; the text gives none."""
SAMPLES, CLASSES, WIDTH = 12, 3, 4
PRICED_WIDTH, COLUMNS = 192, (64, 128 * 64)
"""An output projection; one image of 64 patches, and 128 of them."""

Linear = Callable[[Tensor], Tensor]


def fisher_findings() -> list[Finding]:
    """Return one finding per claim of section 3.3."""
    return [*fisher_and_its_step(), conjugate_gradients_reach_the_solution(), no_matrix_is_formed()]


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
