"""The walk of tokens: hand calculations for chains and spheres, and its numbers inside a network."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.papers.brownian import ViT
from stages.papers.brownian.observations import observe
from stages.papers.brownian.walk import (
    attention_transition,
    depth_rows,
    distance_to_brownian_motion,
    distance_to_limit,
    dobrushin,
    gaussian_transition,
    head_rows,
    mean_squared_distance,
    motion_rows,
    on_sphere,
    spectrum,
    squared_distances,
    stationary_distribution,
)
from tests.papers.properties import draw_images

TWO_STATES = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
"""π = (3/4, 1/4); eigenvalues 1 and 0.6; P^k is within 0.75 · 0.6^k of its limit."""


assert_exact = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_on_sphere_is_layer_norm_without_epsilon() -> None:
    v = draw(2, 5, 7) * 3 + 1
    assert_exact(on_sphere(v), F.layer_norm(v, (7,), eps=0.0))
    assert_exact(on_sphere(v).norm(dim=-1), torch.full((2, 5), math.sqrt(7), dtype=torch.float64))


def test_transitions_equal_loops_over_tokens() -> None:
    q, k = draw(2, 4, 3)
    by_loops = torch.zeros(4, 4, dtype=torch.float64)
    gaussian = torch.zeros(4, 4, dtype=torch.float64)
    for i in range(4):
        for j in range(4):
            by_loops[i, j] = math.exp(sum((q[i] * k[j]).tolist()) / math.sqrt(3))
            gaussian[i, j] = math.exp(-sum(((q[i] - q[j]) ** 2).tolist()) / (2 * 0.7))
    assert_exact(attention_transition(q, k), by_loops / by_loops.sum(1, keepdim=True))
    assert_exact(gaussian_transition(q, 0.7), gaussian / gaussian.sum(1, keepdim=True))


def test_two_states_equal_a_hand_calculation() -> None:
    assert_exact(stationary_distribution(TWO_STATES), torch.tensor([0.75, 0.25], dtype=torch.float64))
    assert_exact(spectrum(TWO_STATES), torch.tensor([1.0, 0.6], dtype=torch.float64))
    assert dobrushin(TWO_STATES).item() == pytest.approx(0.6)
    expected = torch.tensor([0.75 * 0.6**k for k in (1, 2, 5)], dtype=torch.float64)
    assert_exact(distance_to_limit(TWO_STATES, [1, 2, 5]), expected)


@pytest.mark.parametrize("shape", [(6, 4), (3, 6, 4), (2, 3, 6, 4)])
def test_batches_are_independent_chains(shape: tuple[int, ...]) -> None:
    transition = attention_transition(draw(*shape), draw(*shape, seed=1))
    stationary = stationary_distribution(transition)
    assert stationary.shape == shape[:-1]
    one = transition.reshape(-1, 6, 6)[-1]
    assert_exact(stationary.reshape(-1, 6)[-1], stationary_distribution(one))
    assert_exact(stationary[..., None, :] @ transition, stationary[..., None, :])
    assert_exact(spectrum(transition).reshape(-1, 6)[-1], spectrum(one))
    assert distance_to_limit(transition, [1, 2]).shape == (*shape[:-2], 2)


@pytest.mark.parametrize("seed", range(3))
def test_any_attention_matrix_contracts_to_one_point(seed: int) -> None:
    """A step keeps at most the Dobrushin share of a difference, and powers converge at least at that rate."""
    transition = attention_transition(draw(8, 4, seed=seed), draw(8, 4, seed=100 + seed))
    share = dobrushin(transition).item()
    assert spectrum(transition)[0].item() == pytest.approx(1.0) and spectrum(transition)[1] <= share + 1e-12 < 1
    distances = distance_to_limit(transition, [1, 2, 4, 8]).tolist()
    assert all(distance <= share**k + 1e-12 for distance, k in zip(distances, (1, 2, 4, 8), strict=True))
    tokens = draw(8, 3, seed=200 + seed)
    far = torch.linalg.matrix_power(transition, 4000) @ tokens
    assert (mean_squared_distance(far) / mean_squared_distance(tokens)).item() < 1e-6


def test_mean_squared_distance_averages_over_pairs() -> None:
    v = draw(2, 5, 3)
    pairs = [[(v[b, i] - v[b, j]).square().sum() for i in range(5) for j in range(5) if i != j] for b in range(2)]
    expected = torch.stack([torch.stack(row).mean() for row in pairs])
    assert_exact(mean_squared_distance(v), expected)
    assert_exact(squared_distances(v).sum(dim=(1, 2)) / 20, expected)


def test_small_steps_on_a_dense_circle_approach_brownian_motion() -> None:
    """A step's angle has the kernel's variance up to a share of σ², so four times the steps leave a quarter."""
    distances = [distance_to_brownian_motion(steps) for steps in (8, 32, 128)]
    assert distances[0] / distances[1] == pytest.approx(4, rel=0.05)
    assert distances[1] / distances[2] == pytest.approx(4, rel=0.05)
    assert distances[2] < 1e-3
    assert distance_to_brownian_motion(32, tokens=1024) == pytest.approx(distances[1], rel=1e-3), "enough tokens"
    assert distance_to_brownian_motion(512, tokens=16) > 0.5, "a step shorter than the gap between tokens goes nowhere"


Build = Callable[..., ViT]


def identity_vit(small_vit: Build) -> ViT:
    """The paper's own setting in its first block: one head, Q = K = V = LN(X)."""
    model = small_vit(num_heads=1, depth=1)
    with torch.no_grad():
        attention = model.blocks[0].attention
        attention.qkv.weight.copy_(torch.eye(16).repeat(3, 1))
        attention.qkv.bias.zero_()
    return model


def test_head_rows_equal_hand_calculated_chains(small_vit: Build) -> None:
    model, images = small_vit().eval(), draw_images()
    rows = head_rows(model, images)
    assert [(row["block"], row["head"]) for row in rows] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    first = model.blocks[0]
    with torch.no_grad():
        x = first.attention_norm(model.embed(images))
        q, k, _ = first.attention.heads(x)
        matrices = (q @ k.mT / math.sqrt(8)).double().softmax(dim=-1)[:, 1]  # head 2 of block 1
    row = rows[1]
    assert row["self_probability"] == pytest.approx(sum(m.diagonal().mean().item() for m in matrices) / 4, rel=1e-5)
    entropy = sum(-(p * math.log(p)) for m in matrices for line in m.tolist() for p in line) / (4 * 9)
    assert row["entropy"] == pytest.approx(entropy, rel=1e-5)
    second = sum(sorted(torch.linalg.eigvals(m).abs().tolist())[-2] for m in matrices) / 4
    assert row["second_eigenvalue"] == pytest.approx(second, rel=1e-5)
    assert row["spectral_gap"] == pytest.approx(1 - second, rel=1e-5)
    assert 0 < row["smallest_entry"] < row["self_probability"] < 1
    assert row["row_sum_error"] < 1e-12 and row["second_eigenvalue"] <= row["dobrushin"] + 1e-9


def test_gaussian_distance_is_zero_only_in_the_papers_setting(small_vit: Build) -> None:
    model, images = identity_vit(small_vit), draw_images()
    # LayerNorm's ε keeps tokens of small variance off the sphere; larger images make this negligible.
    [row] = head_rows(model, images * 100)
    assert row["gaussian_distance"] < 1e-5
    nn.init.normal_(model.blocks[0].attention.qkv.weight, std=0.3)
    [row] = head_rows(model, images * 100)
    assert row["gaussian_distance"] > 0.1


def test_depth_rows_follow_the_tokens(small_vit: Build) -> None:
    model, images = small_vit().eval(), draw_images()
    rows = depth_rows(model, images)
    assert [row["depth"] for row in rows] == [0, 1, 2]
    with torch.no_grad():
        before = model.embed(images)
        after = model.blocks[0](before)
    on_the_sphere = squared_distances(on_sphere(after.double())).sum(dim=(1, 2)).mean().item() / 72
    assert rows[1]["on_sphere"] == pytest.approx(on_the_sphere, rel=1e-6)
    assert rows[1]["share_of_sphere"] == pytest.approx(on_the_sphere / 32, rel=1e-6)
    assert rows[1]["step"] == pytest.approx((after - before).square().sum(-1).mean().item(), rel=1e-6)
    assert 0 <= rows[1]["norm_error"] < 0.01 and "step" not in rows[0]


def test_probing_changes_nothing(small_vit: Build) -> None:
    model, images = small_vit(), draw_images()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert head_rows(model, images) == head_rows(model, images)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


class Steps(nn.Module):
    """Replaces attention with the given steps."""

    def __init__(self, step: Tensor) -> None:
        super().__init__()
        self.step = step

    def forward(self, tokens: Tensor) -> Tensor:
        return self.step.expand_as(tokens)


def walking(build: Build, *steps: Tensor) -> ViT:
    model = build(depth=len(steps)).eval()
    for block, step in zip(model.blocks, steps, strict=True):
        block.attention = Steps(step)
    return model


def ratios(model: ViT) -> list[float]:
    return [row["displacement_over_steps"] for row in motion_rows(model, draw_images())]


def test_equal_steps_drift_and_opposite_steps_return(small_vit: Build) -> None:
    step = torch.ones(16)
    assert ratios(walking(small_vit, step, step, step, step)) == pytest.approx([1, 2, 3, 4])
    assert ratios(walking(small_vit, step, -step, step, -step)) == pytest.approx([1, 0, 1 / 3, 0], abs=1e-12)


def test_independent_steps_travel_like_brownian_motion(small_vit: Build) -> None:
    generator = torch.Generator().manual_seed(0)
    steps = [torch.randn(4, 9, 16, generator=generator) for _ in range(4)]
    assert ratios(walking(small_vit, *steps)) == pytest.approx([1] * 4, abs=0.12)  # 576 draws per step
    at_right_angles = list(torch.eye(16)[:4])
    assert ratios(walking(small_vit, *at_right_angles)) == pytest.approx([1] * 4)


def test_motion_equals_attention_in_the_forward_pass(small_vit: Build) -> None:
    model, images = small_vit().eval(), draw_images()
    with torch.no_grad():
        x = model.embed(images)
        first = model.blocks[0].attention(model.blocks[0].attention_norm(x))
        second = model.blocks[1].attention(model.blocks[1].attention_norm(model.blocks[0](x)))
    both = ((first + second).square().sum() / (first.square().sum() + second.square().sum())).item()
    assert ratios(model) == pytest.approx([1, both], rel=1e-5)


def test_observations_equal_the_probes_rows(small_vit: Build) -> None:
    model, images = small_vit().eval(), draw_images()
    observed, rows = observe(model, images), head_rows(model, images)
    assert observed.images == len(images)
    assert observed.layers["self_probability"] == [
        [row["self_probability"] for row in rows if row["block"] == block] for block in (1, 2)
    ]
    assert observed.numbers["gaussian_distance"] == pytest.approx(sum(row["gaussian_distance"] for row in rows) / 4)
    assert observed.numbers["row_sum_error"] < 1e-12
    assert {len(blocks) for blocks in observed.layers.values()} == {2}


def test_another_papers_model_is_refused() -> None:
    with pytest.raises(TypeError, match="model is a Linear; this paper's observations are about ViT"):
        observe(nn.Linear(2, 2), draw_images())
