"""Chains and spheres against hand-worked cases, loops and laws."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stages.papers.brownian.walk import (
    attention_transition,
    distance_to_brownian_motion,
    distance_to_limit,
    dobrushin,
    gaussian_transition,
    mean_squared_distance,
    on_sphere,
    spectrum,
    squared_distances,
    stationary_distribution,
)

TWO_STATES = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
"""π = (3/4, 1/4); eigenvalues 1 and 0.6; P^k is within 0.75 · 0.6^k of its limit."""


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_on_sphere_is_layer_norm_without_epsilon() -> None:
    v = draw(2, 5, 7) * 3 + 1
    torch.testing.assert_close(on_sphere(v), F.layer_norm(v, (7,), eps=0.0), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        on_sphere(v).norm(dim=-1), torch.full((2, 5), math.sqrt(7), dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_transitions_equal_loops_over_tokens() -> None:
    q, k = draw(2, 4, 3)
    by_loops = torch.zeros(4, 4, dtype=torch.float64)
    gaussian = torch.zeros(4, 4, dtype=torch.float64)
    for i in range(4):
        for j in range(4):
            by_loops[i, j] = math.exp(sum((q[i] * k[j]).tolist()) / math.sqrt(3))
            gaussian[i, j] = math.exp(-sum(((q[i] - q[j]) ** 2).tolist()) / (2 * 0.7))
    torch.testing.assert_close(attention_transition(q, k), by_loops / by_loops.sum(1, keepdim=True), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        gaussian_transition(q, 0.7), gaussian / gaussian.sum(1, keepdim=True), rtol=0, atol=1e-12
    )


def test_two_states_give_the_hand_worked_chain() -> None:
    exactly = {"rtol": 0.0, "atol": 1e-12}
    torch.testing.assert_close(
        stationary_distribution(TWO_STATES), torch.tensor([0.75, 0.25], dtype=torch.float64), **exactly
    )
    torch.testing.assert_close(spectrum(TWO_STATES), torch.tensor([1.0, 0.6], dtype=torch.float64), **exactly)
    assert dobrushin(TWO_STATES).item() == pytest.approx(0.6)
    expected = torch.tensor([0.75 * 0.6**k for k in (1, 2, 5)], dtype=torch.float64)
    torch.testing.assert_close(distance_to_limit(TWO_STATES, [1, 2, 5]), expected, **exactly)


@pytest.mark.parametrize("shape", [(6, 4), (3, 6, 4), (2, 3, 6, 4)])
def test_batches_are_chains_side_by_side(shape: tuple[int, ...]) -> None:
    transition = attention_transition(draw(*shape), draw(*shape, seed=1))
    stationary = stationary_distribution(transition)
    assert stationary.shape == shape[:-1]
    one = transition.reshape(-1, 6, 6)[-1]
    torch.testing.assert_close(stationary.reshape(-1, 6)[-1], stationary_distribution(one), rtol=0, atol=1e-12)
    torch.testing.assert_close(stationary[..., None, :] @ transition, stationary[..., None, :], rtol=0, atol=1e-12)
    torch.testing.assert_close(spectrum(transition).reshape(-1, 6)[-1], spectrum(one), rtol=0, atol=1e-12)
    assert distance_to_limit(transition, [1, 2]).shape == (*shape[:-2], 2)


@pytest.mark.parametrize("seed", range(3))
def test_any_attention_matrix_contracts_to_one_point(seed: int) -> None:
    """Every step keeps at most the Dobrushin share of a difference, and powers fall to their limit at that pace."""
    transition = attention_transition(draw(8, 4, seed=seed), draw(8, 4, seed=100 + seed))
    share = dobrushin(transition).item()
    assert spectrum(transition)[0].item() == pytest.approx(1.0) and spectrum(transition)[1] <= share + 1e-12 < 1
    distances = distance_to_limit(transition, [1, 2, 4, 8]).tolist()
    assert all(distance <= share**k + 1e-12 for distance, k in zip(distances, (1, 2, 4, 8), strict=True))
    tokens = draw(8, 3, seed=200 + seed)
    far = torch.linalg.matrix_power(transition, 4000) @ tokens
    assert (mean_squared_distance(far) / mean_squared_distance(tokens)).item() < 1e-6


def test_mean_squared_distance_is_that_over_pairs() -> None:
    v = draw(2, 5, 3)
    pairs = [[(v[b, i] - v[b, j]).square().sum() for i in range(5) for j in range(5) if i != j] for b in range(2)]
    expected = torch.stack([torch.stack(row).mean() for row in pairs])
    torch.testing.assert_close(mean_squared_distance(v), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(squared_distances(v).sum(dim=(1, 2)) / 20, expected, rtol=0, atol=1e-12)


def test_walk_of_small_steps_on_a_full_circle_tends_to_a_brownian_motion() -> None:
    """A step's angle has the kernel's variance up to a share of σ², so four times the steps leave a quarter."""
    distances = [distance_to_brownian_motion(steps) for steps in (8, 32, 128)]
    assert distances[0] / distances[1] == pytest.approx(4, rel=0.05)
    assert distances[1] / distances[2] == pytest.approx(4, rel=0.05)
    assert distances[2] < 1e-3
    assert distance_to_brownian_motion(32, tokens=1024) == pytest.approx(distances[1], rel=1e-3), "tokens are enough"
    assert distance_to_brownian_motion(512, tokens=16) > 0.5, "a step shorter than the gap between tokens goes nowhere"
