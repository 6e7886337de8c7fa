"""CG-FAC: conjugate gradients follow the printed algorithm and find the damped solution."""

from functools import partial
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from stages.optim import cg_fac, kfac
from stages.optim.capture import gradient_matrix
from stages.optim.cg_fac import CGFAC, conjugate_gradient
from stages.optim.kfac import KFAC
from stages.run import OptimizerSpec
from tests.optim.layers import make_problem

DAMPING = 0.01
Spec = partial(OptimizerSpec, name="cg_fac", lr=0.1)


def dense_fisher(reading: str, samples: Tensor, inputs: Tensor, gradients: Tensor) -> Tensor:
    """Sum over samples and tokens in loops; samples are [B, O, I]."""
    if reading == "per-sample":
        return sum(torch.outer(g.flatten(), g.flatten()) for g in samples) / len(samples)
    columns = [(b, t) for b in range(inputs.shape[0]) for t in range(inputs.shape[1])]
    a_factor = sum(torch.outer(inputs[c], inputs[c]) for c in columns) / len(columns)
    g_factor = sum(torch.outer(gradients[c], gradients[c]) for c in columns) / len(samples)
    return torch.kron(g_factor, a_factor)


@pytest.mark.parametrize("reading", ["kronecker", "per-sample"])
def test_step_is_minus_lr_times_the_damped_solution(reading: Literal["kronecker", "per-sample"]) -> None:
    problem = make_problem()
    layer, batch = problem.network.mix, problem.captured()
    fisher = dense_fisher(reading, problem.sample_gradients(), batch.inputs, batch.gradients)
    b = gradient_matrix(layer).flatten()
    exact = torch.linalg.solve(fisher + DAMPING * torch.eye(8, dtype=torch.float64), b)
    before = torch.cat([layer.weight, layer.bias[:, None]], dim=1).detach()
    optimizer = CGFAC(
        problem.network, lr=0.5, damping=DAMPING, cg_iterations=8, cg_tolerance=0.0, reading=reading, layers=("mix",)
    )
    optimizer.zero_grad()
    problem.loss().backward()
    optimizer.step()
    step = (torch.cat([layer.weight, layer.bias[:, None]], dim=1) - before).flatten()
    assert ((step + 0.5 * exact).norm() / exact.norm()).item() < 1e-6


def test_matrix_free_and_factored_cg_fac_equal_kfac() -> None:
    moved = []
    for kind in (
        partial(CGFAC, cg_iterations=8, cg_tolerance=0.0),
        partial(CGFAC, cg_iterations=8, cg_tolerance=0.0, factor_decay=0.0),
        partial(KFAC, factor_decay=0.0, update_interval=1),
    ):
        problem = make_problem()
        optimizer = kind(problem.network, lr=0.1, damping=DAMPING, layers=("mix",))
        problem.loss().backward()
        optimizer.step()
        moved.append(problem.network.mix.weight.detach())
    torch.testing.assert_close(moved[1], moved[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(moved[2], moved[0], rtol=0, atol=1e-6)


def test_warm_start_is_more_accurate_after_equal_iterations() -> None:
    def error(warm_start: bool) -> float:
        problem = make_problem()
        optimizer = CGFAC(
            problem.network,
            lr=1e-9,
            damping=1e-4,
            cg_iterations=2,
            warm_start=warm_start,
            layers=("mix",),
            cg_tolerance=0,
        )
        for _ in range(6):
            optimizer.zero_grad()
            problem.loss().backward()
            b = gradient_matrix(problem.network.mix)
            optimizer.step()
        x = gradient_matrix(problem.network.mix)
        residual = b - optimizer.fisher_operator({}, problem.captured())(x)
        return (residual.norm() / b.norm()).item()

    assert error(True) < 0.5 * error(False)


def test_build_uses_the_spec_and_class_defaults() -> None:
    network = make_problem().network
    optimizer = cg_fac.build(network, Spec(damping=0.5, cg_iterations=4, warm_start=True, layers=("mix",), rest="adam"))
    assert (optimizer.damping, optimizer.cg_iterations, optimizer.warm_start) == (0.5, 4, True)
    assert list(optimizer.capture.layers) == ["mix"]
    default = CGFAC(network, lr=0.1, layers=("mix",))
    assert cg_fac.build(network, Spec(layers=("mix",))).cg_tolerance == default.cg_tolerance
    peer = kfac.build(network, Spec(factor_decay=0.5, update_interval=7, layers=("mix",)))
    assert (peer.factor_decay, peer.update_interval) == (0.5, 7)


def test_build_refuses_unsupported_options() -> None:
    network = make_problem().network
    with pytest.raises(
        ValueError, match="optimizer sets cg_iterations, reading, which it doesn't take; it takes damping"
    ):
        kfac.build(network, Spec(cg_iterations=3, reading="kronecker", layers=("mix",)))


def draw_system(n: int = 12, condition: float = 1e4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    matrix = q @ torch.logspace(0, torch.tensor(condition).log10().item(), n, dtype=torch.float64).diag() @ q.T
    return matrix, torch.randn(n, generator=generator, dtype=torch.float64)


def algorithm_1(matrix: Tensor, b: Tensor, x0: Tensor, m: int) -> Tensor:
    """Lines 5-16 as printed, α with its missing index, without early exit."""
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


def test_iterates_equal_the_printed_algorithm() -> None:
    matrix, b = draw_system()
    for m in range(1, 8):
        x = conjugate_gradient(lambda v: matrix @ v, b, None, iterations=m, tolerance=0.0)
        torch.testing.assert_close(x, algorithm_1(matrix, b, torch.zeros_like(b), m), rtol=1e-9, atol=1e-9)


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


def test_zero_gradient_gives_zero_without_dividing_by_it() -> None:
    matrix, b = draw_system()
    for start in (None, torch.ones_like(b)):
        x = conjugate_gradient(lambda v: matrix @ v, torch.zeros_like(b), start, iterations=20, tolerance=0.0)
        assert torch.equal(x, torch.zeros_like(b))


def test_iterating_past_convergence_stays_finite_at_any_scale() -> None:
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


def test_start_of_a_very_different_size_is_dropped() -> None:
    matrix, b = (t.float() for t in draw_system())
    x = conjugate_gradient(lambda v: matrix @ v, b * 1e-30, torch.ones_like(b) * 1e20, iterations=5, tolerance=0.0)
    assert x.isfinite().all() and x @ b > 0


def test_solver_reads_no_values_from_the_gpu() -> None:
    """Fake tensors refuse to be read."""
    with FakeTensorMode():
        matrix, b, start = (torch.ones(shape, device="cuda") for shape in ((12, 12), (12,), (12,)))
        for first in (None, start):
            x = conjugate_gradient(lambda v: matrix @ v, b, first, iterations=10, tolerance=0.01)
            assert (x.shape, x.device.type) == (b.shape, "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tolerance", [0.0, 0.01, 0.5])
def test_zero_length_steps_end_like_the_loop(
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
