"""HyperBF's block against the equations, its dead unit, and the statements of appendix 6.3 and section 4 about it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops.rbf import rbf_attention_reference, rbf_feedforward_reference
from stages.ops.rbf_layers import RBFAttention, RBFFeedForward
from stages.papers.hyperbf import HyperBF, HyperBFAsWritten
from stages.papers.hyperbf.findings import COMMON, HYPERBF
from tests.papers.hyperbf.conftest import SMALL


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def test_a_block_is_the_printed_equations_put_together() -> None:
    torch.manual_seed(0)
    model = HyperBF(**SMALL | HYPERBF | {"depth": 1, "feedforward_metric": "factored", "feedforward_beta": 0.05})
    block = model.double().blocks[0]
    with torch.no_grad():
        for parameter in block.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    attention, feedforward = block.attention, block.feedforward
    x = draw(2, 10, 16, dtype=torch.float64)
    q, k, v = (block.attention_norm(x) @ attention.qkv.weight.T).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    mixed = rbf_attention_reference(q, k, v, (1 / (2 * attention.beta)).sqrt(), attention.metric_factor)
    u = x + F.linear(mixed.transpose(1, 2).flatten(2), attention.projection.weight, attention.projection.bias)
    phi = rbf_feedforward_reference(
        block.feedforward_norm(u),
        feedforward.centers,
        feedforward.values.weight.T,
        feedforward.beta,
        feedforward.metric_factor,
    )
    torch.testing.assert_close(block(x), u + phi, rtol=0, atol=1e-9)


def make_feedforward(beta: float) -> RBFFeedForward:
    torch.manual_seed(0)
    return RBFFeedForward(768, 20, 768, beta=beta)


def test_with_beta_a_tenth_the_feed_forward_is_dead() -> None:
    """|LN(x)|² = 768 and |t|² near it: exp(-0.1 · 1536) is zero in float32, and so is every gradient but the bias's."""
    layer = make_feedforward(beta=0.1)
    x = F.layer_norm(draw(260, 768), (768,)).requires_grad_()
    out = layer(x)
    bias = layer.values.bias
    assert torch.equal(out, bias.expand_as(out))
    (out * draw(260, 768)).sum().backward()
    gradients = {name: p.grad.abs().max().item() for name, p in layer.named_parameters()}
    assert {name for name, largest in gradients.items() if largest != 0} == {"values.bias"}
    assert x.grad is not None and x.grad.abs().max() == 0


def test_with_beta_a_thousandth_the_feed_forward_is_alive() -> None:
    layer = make_feedforward(beta=0.001)
    x = F.layer_norm(draw(260, 768), (768,))
    layer(x).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in layer.parameters())
    d_squared = torch.cdist(x, layer.centers).square()
    kernel = torch.exp(-0.001 * d_squared)
    assert kernel.mean().item() == pytest.approx(0.216, abs=0.005)
    assert 0.24 < kernel.max().item() < 0.29


def test_as_written_residuals_lose_the_attention_of_a_dead_unit() -> None:
    torch.manual_seed(0)
    own = HYPERBF | {"feedforward_beta": 1000.0}
    model = HyperBFAsWritten(**SMALL | own)
    images = draw(2, 3, 12, 12)
    with torch.no_grad():
        before = model(images)
        for block in model.blocks:
            block.attention.projection.weight.mul_(3)
        assert torch.equal(model(images), before)


def test_kernels_start_as_the_paper_finds_them_trained() -> None:
    """Section 4: σ of attention below σ of the feed-forward, and M near I; both hold before any step."""
    with torch.device("cpu"):
        model = HyperBF(**COMMON | {"image_size": 32, "num_classes": 10, "depth": 1} | HYPERBF)
    observed = model.observe_kernels()
    assert observed.keys() == {"attention_sigma", "attention_metric_change", "feedforward_sigma"}
    assert observed["attention_sigma"] == pytest.approx([2.632], abs=1e-3)
    assert observed["feedforward_sigma"] == pytest.approx([22.36], abs=1e-2)
    assert observed["attention_metric_change"] == [0.0]


@pytest.mark.parametrize("metric", ["factored", "free"])
def test_observed_kernels_follow_the_parameters(metric: str) -> None:
    model = HyperBF(**SMALL | HYPERBF | {"attention_metric": metric, "feedforward_metric": metric})
    with torch.no_grad():
        for unit in model.modules():
            if isinstance(unit, RBFAttention | RBFFeedForward):
                unit.beta.fill_(0.5)
                learned = unit.metric_factor if unit.metric is None else unit.metric
                learned.mul_(2)
    observed = model.observe_kernels()
    assert observed["attention_sigma"] == observed["feedforward_sigma"] == [1.0, 1.0]
    change = 3.0 if metric == "factored" else 1.0
    assert observed["attention_metric_change"] == observed["feedforward_metric_change"] == pytest.approx([change] * 2)


def test_every_argument_reaches_its_unit() -> None:
    own = {
        "num_centers": 7,
        "kernel": "laplacian",
        "attention_metric": "free",
        "attention_beta": 0.25,
        "feedforward_metric": "factored",
        "feedforward_beta": 0.125,
        "feedforward_bias": True,
        "feedforward_normalised": True,
    }
    for block in HyperBF(**SMALL | HYPERBF | own).blocks:
        attention, feedforward = block.attention, block.feedforward
        assert (attention.kernel, attention.beta.item(), attention.num_heads) == ("laplacian", 0.25, 2)
        assert attention.metric.shape == (8, 8) and attention.metric_factor is None
        assert (feedforward.kernel, feedforward.normalised) == ("laplacian", True)
        assert feedforward.centers.shape == (7, 16) and feedforward.beta.tolist() == [0.125] * 7
        assert feedforward.metric_factor.shape == (16, 16) and feedforward.metric is None
        assert feedforward.values.bias is not None
    assert HyperBF(**SMALL | HYPERBF).blocks[0].attention.beta.item() == pytest.approx(8**-0.5)
