from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from stages.optim import cg_fac
from stages.optim.cg_fac import conjugate_gradient
from stages.optim.fisher import kronecker_product, per_sample_product
from tests.optim.layers import dense, make_problem

DAMPING = 0.01


def draw_system(n: int = 12, condition: float = 1e4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    matrix = q @ torch.logspace(0, torch.tensor(condition).log10().item(), n, dtype=torch.float64).diag() @ q.T
    return matrix, torch.randn(n, generator=generator, dtype=torch.float64)


def algorithm_1(matrix: Tensor, b: Tensor, x0: Tensor, m: int) -> Tensor:
    """Lines 5-16 as printed, α with its missing index, without an early exit."""
    x = [x0]
    r = [b - matrix @ x0]
    p, rho = [r[0]], [r[0].norm() ** 2]
    for k in range(m):
        u = matrix @ p[k]
        alpha = rho[k] / (p[k] @ u)
        x.append(x[k] + alpha * p[k])
        r.append(r[k] - alpha * u)
        rho.append(r[k + 1].norm() ** 2)
        p.append(r[k + 1] + rho[k + 1] / rho[k] * p[k])
    return x[m]


def test_iterates_are_those_of_the_printed_algorithm() -> None:
    matrix, b = draw_system()
    for m in range(1, 8):
        x = conjugate_gradient(lambda v: matrix @ v, b, None, iterations=m, tolerance=0.0)
        torch.testing.assert_close(x, algorithm_1(matrix, b, torch.zeros_like(b), m), rtol=1e-9, atol=1e-9)


def test_dense_solution_is_reached_in_n_steps_in_both_readings() -> None:
    problem = make_problem()
    batch, b = (
        problem.captured(),
        torch.cat([problem.network.mix.weight.grad, problem.network.mix.bias.grad[:, None]], dim=1),
    )
    for reading in (kronecker_product, per_sample_product):

        def product(v: Tensor, reading: object = reading) -> Tensor:
            assert callable(reading)
            return reading(batch, v) + DAMPING * v

        exact = torch.linalg.solve(dense(product, b.shape), b.flatten()).reshape(b.shape)
        x = conjugate_gradient(product, b, None, iterations=b.numel(), tolerance=0.0)
        assert ((x - exact).norm() / exact.norm()).item() < 1e-6


def test_stops_at_the_relative_squared_residual() -> None:
    matrix, b = draw_system(condition=100.0)
    calls = 0

    def product(v: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return matrix @ v

    for tolerance in (0.5, 0.01, 1e-6):
        calls = 0
        x = conjugate_gradient(product, b, None, iterations=50, tolerance=tolerance)
        iterations = calls
        assert (b - matrix @ x).square().sum() <= tolerance * b.square().sum()
        shorter = algorithm_1(matrix, b, torch.zeros_like(b), iterations - 1)
        assert (b - matrix @ shorter).square().sum() > tolerance * b.square().sum()


def test_a_good_start_saves_iterations_and_the_solution_costs_none() -> None:
    matrix, b = draw_system()
    exact = torch.linalg.solve(matrix, b)

    def iterations(start: Tensor) -> int:
        calls: list[Tensor] = []
        conjugate_gradient(lambda v: calls.append(v) or matrix @ v, b, start, iterations=50, tolerance=0.01)
        return len(calls) - 1

    assert iterations(exact) == 0
    assert 0 < iterations(exact * 1.2) < iterations(torch.zeros_like(b))


def test_zero_gradient_gives_zero_and_no_division_by_it() -> None:
    matrix, b = draw_system()
    for start in (None, torch.ones_like(b)):
        x = conjugate_gradient(lambda v: matrix @ v, torch.zeros_like(b), start, iterations=20, tolerance=0.0)
        assert torch.equal(x, torch.zeros_like(b))


def test_iterating_past_convergence_stays_finite_in_float32_at_any_scale() -> None:
    matrix, b = (t.float() for t in draw_system(condition=10.0))
    for damped in (1.0, 1e-4):
        for scale in (1e-30, 1e-18, 1e-10, 1.0, 1e6):
            x = conjugate_gradient(
                lambda v, damped=damped: damped * (matrix @ v),
                b * scale,
                None,
                iterations=200,
                tolerance=0.0,
            )
            torch.testing.assert_close(x * (damped / scale), torch.linalg.solve(matrix, b), rtol=1e-3, atol=1e-4)


def test_a_start_of_another_size_than_the_gradient_is_dropped_not_overflowed() -> None:
    matrix, b = (t.float() for t in draw_system())
    x = conjugate_gradient(lambda v: matrix @ v, b * 1e-30, torch.ones_like(b) * 1e20, iterations=5, tolerance=0.0)
    assert x.isfinite().all() and x @ b > 0


def test_on_a_gpu_no_number_is_read_on_the_way() -> None:
    """A fake tensor has none to read, and refuses."""
    with FakeTensorMode():
        matrix, b, start = (torch.ones(shape, device="cuda") for shape in ((12, 12), (12,), (12,)))
        for first in (None, start):
            x = conjugate_gradient(lambda v: matrix @ v, b, first, iterations=10, tolerance=0.01)
            assert (x.shape, x.device.type) == (b.shape, "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tolerance", [0.0, 0.01, 0.5])
def test_steps_of_length_0_end_where_the_loop_would(
    monkeypatch: pytest.MonkeyPatch, tolerance: float, dtype: torch.dtype
) -> None:
    for seed in range(10):
        matrix, b = (tensor.to(dtype) for tensor in draw_system(condition=100.0, seed=seed))
        exact = torch.linalg.solve(matrix, b)
        for gradient in (b, torch.zeros_like(b), b * torch.nan):
            for start in (None, exact, exact * 1.2, -exact):
                found = []
                for is_at_hand in (True, False):
                    monkeypatch.setattr(cg_fac, "_is_at_hand", lambda number, answer=is_at_hand: answer)
                    found.append(
                        conjugate_gradient(
                            lambda v, m=matrix: m @ v, gradient, start, iterations=20, tolerance=tolerance
                        )
                    )
                torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)
