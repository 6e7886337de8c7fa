"""The paper's networks compared with its equations, timm and counted sizes; their observed kernels."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.ops.rbf import RBFAttention, RBFFeedForward, rbf_attention_reference, rbf_feedforward_reference
from stages.papers.hyperbf import HyperBF, HyperBFAsWritten, ViT
from stages.papers.hyperbf.findings import COMMON, HYPERBF, VIT
from stages.papers.hyperbf.observations import observe
from stages.papers.hyperbf.vit import AsWrittenBlock, Block, DotProductAttention, attention_reference, resize_positions
from tests.papers.hyperbf.conftest import OWN, SMALL
from tests.papers.properties import assert_equals, renamed


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def test_block_equals_the_printed_equations() -> None:
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


def test_feed_forward_is_dead_with_beta_a_tenth() -> None:
    """|LN(x)|² = 768 and |t|² is similar: exp(-0.1 · 1536) is zero in float32, like all gradients but the bias's."""
    layer = make_feedforward(beta=0.1)
    x = F.layer_norm(draw(260, 768), (768,)).requires_grad_()
    out = layer(x)
    bias = layer.values.bias
    assert torch.equal(out, bias.expand_as(out))
    (out * draw(260, 768)).sum().backward()
    gradients = {name: p.grad.abs().max().item() for name, p in layer.named_parameters()}
    assert {name for name, largest in gradients.items() if largest != 0} == {"values.bias"}
    assert x.grad is not None and x.grad.abs().max() == 0


def test_feed_forward_is_alive_with_beta_a_thousandth() -> None:
    layer = make_feedforward(beta=0.001)
    x = F.layer_norm(draw(260, 768), (768,))
    layer(x).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in layer.parameters())
    d_squared = torch.cdist(x, layer.centers).square()
    kernel = torch.exp(-0.001 * d_squared)
    assert kernel.mean().item() == pytest.approx(0.216, abs=0.005)
    assert 0.24 < kernel.max().item() < 0.29


def test_residuals_as_written_lose_the_attention_of_a_dead_unit() -> None:
    torch.manual_seed(0)
    own = HYPERBF | {"feedforward_beta": 1000.0}
    model = HyperBFAsWritten(**SMALL | own)
    images = draw(2, 3, 12, 12)
    with torch.no_grad():
        before = model(images)
        for block in model.blocks:
            block.attention.projection.weight.mul_(3)
        assert torch.equal(model(images), before)


def test_kernels_already_start_as_the_paper_describes_them_trained() -> None:
    """Section 4: σ of attention below σ of the feed-forward, and M close to I; both hold before any step."""
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


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def cubic(distance: float, a: float = -0.75) -> float:
    """Keys' cubic convolution kernel."""
    d = abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


def test_position_table_of_the_right_size_is_not_resized() -> None:
    table = noise(1, 17, 2)
    assert resize_positions(table, 4) is table


@pytest.mark.parametrize(("own", "grid"), [(56, 8), (7, 3), (3, 5)])
def test_resized_positions_equal_a_cubic_convolution(own: int, grid: int) -> None:
    """Loops over the grid with repeated borders; points are own / (grid + 0.1) apart, as in the authors' code."""
    table = noise(1, 1 + own**2, 1)
    resized = resize_positions(table, grid)
    assert torch.equal(resized[:, 0], table[:, 0])
    step = own / (grid + 0.1)
    for row, column in [(0, 0), (grid - 1, 1), (grid // 2, grid - 1)]:
        y, x = step * (row + 0.5) - 0.5, step * (column + 0.5) - 0.5
        expected = 0.0
        for i in range(int(y // 1) - 1, int(y // 1) + 3):
            for j in range(int(x // 1) - 1, int(x // 1) + 3):
                place = min(max(i, 0), own - 1) * own + min(max(j, 0), own - 1)
                expected += cubic(y - i) * cubic(x - j) * table[0, 1 + place, 0].item()
        assert resized[0, 1 + row * grid + column, 0].item() == pytest.approx(expected, abs=1e-9)


class Shift(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by


def test_blocks_are_the_two_readings_of_equation_1() -> None:
    x, norm = noise(2, 3, 4), lambda y: F.layer_norm(y, (4,))
    as_run = Block(dim=4, attention=Shift(1.0), feedforward=Shift(2.0)).double()
    as_written = AsWrittenBlock(dim=4, attention=Shift(1.0), feedforward=Shift(2.0)).double()
    u = x + (norm(x) + 1)
    torch.testing.assert_close(as_run(x), u + (norm(u) + 2))
    torch.testing.assert_close(as_written(x), x + (norm(u) + 2))


GOLDEN = Path(__file__).parents[2] / "golden" / "hyperbf_timm.npz"
OUR_NAMES = {
    "cls_token": "embedding.class_token",
    "pos_embed": "embedding.positions",
    "patch_embed.proj": "embedding.projection",
    "norm1": "attention_norm",
    "attn.qkv": "attention.qkv",
    "attn.proj": "attention.projection",
    "norm2": "feedforward_norm",
    "mlp.fc1": "feedforward.0",
    "mlp.fc2": "feedforward.2",
}


def test_vit_equals_timm_in_logits_and_image_gradients() -> None:
    with np.load(GOLDEN) as file:
        vectors = dict(file)
    own = VIT | {"hidden_dim": 5, "has_unused_matrix": False}
    model = ViT(**SMALL | {"dim": 8, "num_classes": 3} | own).double()
    model.load_state_dict(renamed(vectors, "vit/", OUR_NAMES))
    assert_equals(model, vectors)


@pytest.mark.parametrize("exponent", [-0.5, -0.8])
def test_fused_attention_equals_equation_5(exponent: float) -> None:
    torch.manual_seed(0)
    layer = DotProductAttention(dim=12, num_heads=2, scale_exponent=exponent, has_unused_matrix=True).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    q, k, v = (x @ layer.qkv.weight.T).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
    mixed = attention_reference(q, k, v, sigma=6 ** (-exponent / 2)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x), F.linear(mixed, layer.projection.weight, layer.projection.bias))


def test_unused_matrix_changes_only_the_parameter_count() -> None:
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    without = ViT(**SMALL | VIT | {"has_unused_matrix": False})
    torch.manual_seed(0)
    having = ViT(**SMALL | VIT)
    nn_count = [sum(p.numel() for p in model.parameters()) for model in (without, having)]
    assert nn_count[1] - nn_count[0] == 2 * 8 * 8
    with torch.no_grad():
        for block in having.blocks:
            block.attention.unused.fill_(float("nan"))
        assert torch.equal(without(images), having(images))


@pytest.mark.parametrize("name", OWN)
def test_linear_layers_start_without_bias_and_tokens_at_zero(name: str) -> None:
    model_class, own = OWN[name]
    model = model_class(**SMALL | own)
    tensors = dict(model.named_parameters())
    zero = {name for name, p in tensors.items() if p.abs().max() == 0}
    linear = {f"{name}.bias" for name, m in model.named_modules() if isinstance(m, nn.Linear) and m.bias is not None}
    norms = {f"{name}.bias" for name, m in model.named_modules() if isinstance(m, nn.LayerNorm)}
    assert zero == linear | norms | {"embedding.class_token", "embedding.positions"}


IMAGES = torch.zeros(1, 3, 12, 12)


def built(name: str) -> nn.Module:
    model_class, own = OWN[name]
    return model_class(**SMALL | own)


def test_observed_numbers_are_means_over_blocks() -> None:
    model = built("both-metrics")
    assert isinstance(model, HyperBF)
    widths = ((0.5, 2.0), (1.0, 4.0))
    with torch.no_grad():
        for block, (attention, feedforward) in zip(model.blocks, widths, strict=True):
            block.attention.beta.fill_(1 / (2 * attention**2))
            block.feedforward.beta.fill_(1 / (2 * feedforward**2))
        model.blocks[0].attention.metric_factor.mul_(2)  # M = 4 I there, I elsewhere
    observed = observe(model, IMAGES)
    assert observed.numbers == pytest.approx({"kernel_width_gap": math.log(4), "metric_distance_from_identity": 3 / 4})
    assert [value for (value,) in observed.layers["attention_sigma"]] == pytest.approx([0.5, 1.0])
    assert [value for (value,) in observed.layers["attention_metric_change"]] == pytest.approx([3.0, 0.0])
    assert observed.images == 0, "weights only"


def test_distance_is_absent_without_a_learned_metric() -> None:
    model_class, own = OWN["hyperbf"]
    plain = model_class(**SMALL | own | {"attention_metric": "euclidean"})
    assert observe(plain, IMAGES).numbers.keys() == {"kernel_width_gap"}


def test_undefined_width_is_nan() -> None:
    model = built("hyperbf")
    assert isinstance(model, HyperBF)
    with torch.no_grad():
        model.blocks[1].attention.beta.fill_(-0.1)
    observed = observe(model, IMAGES)
    assert math.isnan(observed.numbers["kernel_width_gap"])
    first, second = observed.layers["attention_sigma"]
    assert math.isfinite(first[0]) and math.isnan(second[0])


def test_only_hyperbf_is_observed() -> None:
    written = HyperBFAsWritten(**SMALL | OWN["hyperbf"][1])
    assert observe(written, IMAGES).layers.keys() >= {"attention_sigma", "feedforward_sigma"}
    vit = ViT(**SMALL | OWN["vit"][1])
    with pytest.raises(TypeError, match="model is a ViT; this paper's observations are about HyperBF"):
        observe(vit, IMAGES)
