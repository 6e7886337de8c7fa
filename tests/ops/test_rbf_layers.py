from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

from stages.ops.rbf import free_metric_reference, mahalanobis_reference, rbf_attention_reference
from stages.ops.rbf import rbf_feedforward_reference as feedforward_reference
from stages.ops.rbf_layers import RBFAttention, RBFFeedForward


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def perturb(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return module


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("samples", [1, 2], ids=["fewer tokens than width", "more"])
def test_attention_layer_is_the_equation_in_every_head(samples: int) -> None:
    layer = RBFAttention(12, 3, bias=True, dtype=torch.float64)
    perturb(layer)
    x = draw(samples, 7, 12)
    q, k, v = (x @ layer.qkv.weight.T + layer.qkv.bias).split(12, dim=-1)
    sigma, w = (1 / (2 * layer.beta)).sqrt(), layer.metric_factor
    heads = [slice(4 * head, 4 * head + 4) for head in range(3)]
    joined = torch.cat([rbf_attention_reference(q[..., h], k[..., h], v[..., h], sigma, w) for h in heads], dim=-1)
    expected = joined @ layer.projection.weight.T + layer.projection.bias
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("change", [partial(prune.l1_unstructured, name="weight", amount=0.5), weight_norm])
def test_what_is_done_to_the_projection_holds_with_many_tokens(change: Callable[[nn.Linear], Any]) -> None:
    layer = RBFAttention(4, 1, bias=True, dtype=torch.float64)
    perturb(layer)
    change(layer.qkv)
    x = draw(3, 3, 4)
    torch.testing.assert_close(layer(x), torch.cat([layer(one[None]) for one in x]))


def test_the_projections_pass_can_be_watched() -> None:
    layer, seen = RBFAttention(4, 1), []
    layer.qkv.register_forward_hook(lambda *_: seen.append(True))
    layer(draw(3, 3, 4).float())
    assert seen == [True]


def test_a_projection_of_another_type_keeps_it() -> None:
    layer = RBFAttention(4, 1)
    layer.qkv.bfloat16(), layer.projection.bfloat16()
    assert layer(draw(3, 3, 4).bfloat16()).dtype == torch.bfloat16


def test_attention_layer_with_a_free_metric_is_the_authors_form() -> None:
    layer = RBFAttention(4, 1, metric="free", dtype=torch.float64)
    perturb(layer)
    x = draw(2, 5, 4)
    q, k, v = (x @ layer.qkv.weight.T).split(4, dim=-1)
    mixed = (-layer.beta * free_metric_reference(q, k, layer.metric)).softmax(dim=-1) @ v
    torch.testing.assert_close(layer(x), mixed @ layer.projection.weight.T + layer.projection.bias, rtol=0, atol=1e-9)


def test_feedforward_layer_is_the_equation() -> None:
    layer = RBFFeedForward(6, 9, 4, metric="factored", beta=0.1, dtype=torch.float64)
    perturb(layer)
    x = draw(3, 6)
    phi = feedforward_reference(x, layer.centers, layer.values.weight.T, layer.beta, layer.metric_factor)
    torch.testing.assert_close(layer(x), phi + layer.values.bias, rtol=0, atol=1e-9)


def test_normalised_laplacian_feedforward_layer_averages_its_values() -> None:
    layer = RBFFeedForward(6, 9, 4, bias=False, kernel="laplacian", normalised=True, beta=0.1, dtype=torch.float64)
    nn.init.constant_(layer.values.weight, 3.0)
    torch.testing.assert_close(layer(draw(3, 6)), torch.full((3, 4), 3.0, dtype=torch.float64), rtol=0, atol=1e-9)
    perturb(layer)
    weights = torch.exp(-layer.beta * mahalanobis_reference(draw(3, 6), layer.centers, torch.eye(6).double()).sqrt())
    expected = weights @ layer.values.weight.T / weights.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(layer(draw(3, 6)), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("metric", "extra"), [("euclidean", 0), ("factored", 16), ("free", 16)])
def test_a_metric_adds_its_square_of_parameters(metric: str, extra: int) -> None:
    attention = RBFAttention(12, 3, metric=metric)
    assert count(attention) == 4 * 12 * 12 + 12 + 1 + extra
    feedforward = RBFFeedForward(4, 5, 12, metric=metric)
    assert count(feedforward) == 5 * 4 + 5 + 5 * 12 + 12 + extra


def test_layers_start_as_stated() -> None:
    torch.manual_seed(0)
    attention, feedforward = RBFAttention(768, 4), RBFFeedForward(768, 200, 768, metric="free")
    assert attention.metric_factor is not None and torch.equal(attention.metric_factor, torch.eye(192))
    assert feedforward.metric is not None and torch.equal(feedforward.metric, torch.eye(768))
    assert attention.beta.item() == pytest.approx(192**-0.5)
    assert torch.equal(feedforward.beta, torch.full((200,), 0.001))
    assert feedforward.centers.mean().item() == pytest.approx(0, abs=0.01)
    assert feedforward.centers.var().item() == pytest.approx(1, abs=0.02)


def test_layers_stand_where_attention_and_mlp_of_a_network_stood() -> None:
    block = nn.Sequential(nn.LayerNorm(8), RBFAttention(8, 2), nn.LayerNorm(8), RBFFeedForward(8, 5, 8))
    x = torch.randn(2, 3, 8)
    block(x).sum().backward()
    assert block(x).shape == x.shape
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for name, p in block.named_parameters() if "2." not in name
    )
    assert {str(p.device) for p in RBFAttention(8, 2, device="meta").parameters()} == {"meta"}
    assert {p.dtype for p in RBFFeedForward(8, 5, 8, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


def test_impossible_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="num_heads is 3; expected a divisor of embed_dim, which is 8"):
        RBFAttention(8, 3)
    with pytest.raises(ValueError, match="metric is 'learned'; known: euclidean, factored, free"):
        RBFFeedForward(8, 3, 8, metric="learned")
    with pytest.raises(ValueError, match="kernel is 'box'; known: gaussian, laplacian"):
        RBFAttention(8, 2, kernel="box")


def test_the_example_of_the_docs_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operators" / "rbf.md").read_text()
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0], names)
    assert names["x"].shape == (8, 10, 64) and names["mixed"].shape == (8, 4, 10, 16)
    assert names["y"].shape == (8, 4, 10, 5) and names["y"].dtype == torch.float64
