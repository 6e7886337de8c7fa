"""Evaluation reads from a trained ViT the numbers that `probe` gives; the motion, against known walks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stages.papers.brownian import ViT
from stages.papers.brownian.observations import observe
from stages.papers.brownian.probe import head_rows, motion_rows
from tests.papers.properties import draw_images

Build = Callable[..., ViT]


class Steps(nn.Module):
    """Replaces attention by the given steps."""

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


def test_independent_steps_go_as_far_as_a_brownian_motion(small_vit: Build) -> None:
    generator = torch.Generator().manual_seed(0)
    steps = [torch.randn(4, 9, 16, generator=generator) for _ in range(4)]
    assert ratios(walking(small_vit, *steps)) == pytest.approx([1] * 4, abs=0.12)  # 576 draws a step
    at_right_angles = list(torch.eye(16)[:4])
    assert ratios(walking(small_vit, *at_right_angles)) == pytest.approx([1] * 4)


def test_motion_is_that_of_attention_in_the_networks_own_pass(small_vit: Build) -> None:
    model, images = small_vit().eval(), draw_images()
    with torch.no_grad():
        x = model.embed(images)
        first = model.blocks[0].attention(model.blocks[0].attention_norm(x))
        second = model.blocks[1].attention(model.blocks[1].attention_norm(model.blocks[0](x)))
    both = ((first + second).square().sum() / (first.square().sum() + second.square().sum())).item()
    assert ratios(model) == pytest.approx([1, both], rel=1e-5)


def test_observations_are_the_probe_s_rows(small_vit: Build) -> None:
    model, images = small_vit().eval(), draw_images()
    observed, rows = observe(model, images), head_rows(model, images)
    assert observed.images == len(images)
    assert observed.layers["self_probability"] == [
        [row["self_probability"] for row in rows if row["block"] == block] for block in (1, 2)
    ]
    assert observed.numbers["gaussian_distance"] == pytest.approx(sum(row["gaussian_distance"] for row in rows) / 4)
    assert observed.numbers["row_sum_error"] < 1e-12
    assert {len(blocks) for blocks in observed.layers.values()} == {2}


def test_another_paper_s_model_is_refused() -> None:
    with pytest.raises(TypeError, match="model is a Linear; this paper's observations are about ViT"):
        observe(nn.Linear(2, 2), draw_images())
