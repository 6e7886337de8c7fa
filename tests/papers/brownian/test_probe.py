"""The walk's numbers inside a network, against those of the same tokens, one image and one head at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

from stages.papers.brownian import ViT
from stages.papers.brownian.probe import POWERS, depth_rows, head_rows, power_rows, spectrum_rows
from stages.papers.brownian.walk import attention_transition, on_sphere, squared_distances
from tests.papers.properties import draw_images

Build = Callable[..., ViT]


def identity_vit(small_vit: Build) -> ViT:
    """The paper's own setting in its first block: one head, Q = K = V = LN(X)."""
    model = small_vit(num_heads=1, depth=1)
    with torch.no_grad():
        attention = model.blocks[0].attention
        attention.qkv.weight.copy_(torch.eye(16).repeat(3, 1))
        attention.qkv.bias.zero_()
    return model


def test_head_rows_are_chains_by_hand(small_vit: Build) -> None:
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


def test_gaussian_distance_is_zero_in_the_papers_setting_and_only_there(small_vit: Build) -> None:
    model, images = identity_vit(small_vit), draw_images()
    # LayerNorm's ε keeps a token of small variance off the sphere; larger images make that nothing.
    [row] = head_rows(model, images * 100)
    assert row["gaussian_distance"] < 1e-5
    nn.init.normal_(model.blocks[0].attention.qkv.weight, std=0.3)
    [row] = head_rows(model, images * 100)
    assert row["gaussian_distance"] > 0.1


def test_spectrum_rows_fall_from_one(small_vit: Build) -> None:
    rows = spectrum_rows(small_vit(), draw_images())
    assert len(rows) == 2 * 2 * 9
    for block in (1, 2):
        for head in (1, 2):
            moduli = [row["modulus"] for row in rows if (row["block"], row["head"]) == (block, head)]
            assert moduli[0] == pytest.approx(1, abs=1e-6) and moduli == sorted(moduli, reverse=True)


def test_power_rows_fall_to_the_limit(small_vit: Build) -> None:
    rows = power_rows(small_vit(), draw_images())
    assert [row["power"] for row in rows[: len(POWERS)]] == POWERS
    assert len(rows) == 2 * 2 * len(POWERS)
    one_head = [row["distance_to_limit"] for row in rows[: len(POWERS)]]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(one_head))
    assert one_head[-1] < 1e-12 < one_head[0]


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


def test_attention_alone_contracts_the_tokens(small_vit: Build) -> None:
    """The paper's update without shortcut, MLP or projection: X ← P X draws tokens together."""
    model = identity_vit(small_vit)
    x = on_sphere(model.embed(draw_images() * 100).detach())
    transition = attention_transition(*model.blocks[0].attention.heads(x)[:2]).detach()
    before, after = squared_distances(x).mean(), squared_distances(transition @ x).mean()
    assert after < before


def test_probing_changes_nothing(small_vit: Build) -> None:
    model, images = small_vit(), draw_images()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert head_rows(model, images) == head_rows(model, images)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
