"""CG-FAC itself: its direction is the dense damped solution, and the consequences of that."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import pytest
import torch
from torch import Tensor

from stages.optim import cg_fac, kfac
from stages.optim.capture import gradient_matrix
from stages.optim.cg_fac import CGFAC
from stages.optim.kfac import KFAC
from tests.optim.layers import make_problem

DAMPING = 0.01


@dataclass(frozen=True, kw_only=True)
class Spec:
    """The fields of an optimiser's spec, as the params files give them."""

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    damping: float | None = None
    cg_iterations: int | None = None
    cg_tolerance: float | None = None
    warm_start: bool | None = None
    reading: Literal["kronecker", "per-sample"] | None = None
    factor_decay: float | None = None
    update_interval: int | None = None
    kl_clip: float | None = None
    layers: tuple[str, ...] | None = None
    rest: Literal["adam", "sgd"] | None = None
    rest_lr: float | None = None


def dense_fisher(reading: str, samples: Tensor, inputs: Tensor, gradients: Tensor) -> Tensor:
    """Loops over samples and tokens; samples [B, O, I]."""
    if reading == "per-sample":
        return sum(torch.outer(g.flatten(), g.flatten()) for g in samples) / len(samples)
    columns = [(b, t) for b in range(inputs.shape[0]) for t in range(inputs.shape[1])]
    a_factor = sum(torch.outer(inputs[c], inputs[c]) for c in columns) / len(columns)
    g_factor = sum(torch.outer(gradients[c], gradients[c]) for c in columns) / len(samples)
    return torch.kron(g_factor, a_factor)


@pytest.mark.parametrize("reading", ["kronecker", "per-sample"])
def test_step_is_minus_lr_times_the_dense_damped_solution(reading: Literal["kronecker", "per-sample"]) -> None:
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


def test_matrix_free_equals_factors_of_the_batch_and_both_equal_kfac() -> None:
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


def test_warm_start_comes_nearer_with_the_same_iterations() -> None:
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


@pytest.mark.parametrize(
    "change",
    [
        {"cg_iterations": 1},
        {"cg_tolerance": 0.9},
        {"warm_start": True},
        {"reading": "per-sample"},
        {"factor_decay": 0.5},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_keyword_changes_the_result(change: dict[str, object]) -> None:
    results = []
    for keywords in ({}, change):
        problem = make_problem()
        optimizer = CGFAC(
            problem.network,
            **{"lr": 0.001, "damping": 1e-4, "cg_iterations": 3, "cg_tolerance": 0.0, "layers": ("mix",)} | keywords,
        )
        for _ in range(3):
            optimizer.zero_grad()
            problem.loss().backward()
            optimizer.step()
        results.append(problem.network.mix.weight.detach())
    assert not torch.equal(*results)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"reading": "both"}, "reading is 'both'; known: kronecker, per-sample"),
        ({"cg_iterations": 0}, "cg_iterations is 0; expected at least 1"),
        ({"cg_tolerance": 1.0}, "cg_tolerance is 1.0; expected 0 or more and less than 1"),
        ({"update_interval": 10}, "update_interval needs factor_decay"),
        ({"factor_decay": 0.5, "reading": "per-sample"}, "factor_decay is 0.5; expected .* reading kronecker"),
    ],
)
def test_values_without_a_meaning_are_refused(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CGFAC(make_problem().network, **{"lr": 0.1, "layers": ("mix",)} | keywords)


def test_build_reads_the_spec_and_leaves_the_rest_to_the_class() -> None:
    network = make_problem().network
    optimizer = cg_fac.build(network, Spec(damping=0.5, cg_iterations=4, warm_start=True, layers=("mix",), rest="adam"))
    assert (optimizer.damping, optimizer.cg_iterations, optimizer.warm_start) == (0.5, 4, True)
    assert list(optimizer.capture.layers) == ["mix"]
    default = CGFAC(network, lr=0.1, layers=("mix",))
    assert cg_fac.build(network, Spec(layers=("mix",))).cg_tolerance == default.cg_tolerance
    peer = kfac.build(network, Spec(factor_decay=0.5, update_interval=7, layers=("mix",)))
    assert (peer.factor_decay, peer.update_interval) == (0.5, 7)


def test_build_refuses_what_it_would_ignore() -> None:
    network = make_problem().network
    with pytest.raises(
        ValueError, match="optimizer sets cg_iterations, reading, which it doesn't take; it takes damping"
    ):
        kfac.build(network, Spec(cg_iterations=3, reading="kronecker", layers=("mix",)))
