"""HyperBF's functions and layers compared with hand calculations, SciPy, and the equation's plain form."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

from stages.ops import rbf
from stages.ops.rbf import (
    RBFAttention,
    RBFFeedForward,
    free_metric_reference,
    mahalanobis_reference,
    rbf_attention_reference,
)
from stages.ops.rbf import rbf_feedforward_reference as feedforward_reference
from tests.ops.gradients import draw
from tests.ops.rbf_scipy import make_vectors

BETA = 0.07


@pytest.fixture(scope="module")
def theirs() -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in make_vectors().items()}


def test_free_metric_reference_equals_a_hand_calculation() -> None:
    # M isn't symmetric: xMx = 1, tMt = 0 and xMt = 2 give 1 + 0 - 4, which is no squared distance.
    x, t, m = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    assert rbf.free_metric_reference(x, t, m).item() == -3


def test_references_equal_scipy_and_scikit_learn(theirs: dict[str, Tensor]) -> None:
    x, t, c, w, beta = (theirs[name] for name in ("x", "t", "c", "w", "beta"))
    eye = torch.eye(len(w), dtype=w.dtype)
    sigma = math.sqrt(1 / 0.2)
    d_squared = rbf.mahalanobis_reference(x, t, w)
    euclidean = rbf.gaussian_reference(rbf.mahalanobis_reference(x, t, eye), beta)
    pairs = {
        "distance": d_squared.sqrt(),
        "attention_euclidean": rbf.rbf_attention_reference(x, t, c, sigma, eye),
        "attention_factored": rbf.rbf_attention_reference(x, t, c, sigma, w),
        "attention_laplacian": rbf.normalised_rbf_reference(rbf.laplacian_reference(d_squared, 0.1), c),
        "feedforward": rbf.rbf_feedforward_reference(x, t, c, beta, eye),
        "feedforward_normalised": rbf.normalised_rbf_reference(euclidean, c),
        "feedforward_laplacian": rbf.laplacian_reference(d_squared, beta) @ c,
    }
    for name, ours in pairs.items():
        torch.testing.assert_close(ours, theirs[name], rtol=0, atol=1e-9, msg=name)


def test_close_vectors_far_from_the_origin_keep_their_distances_in_bfloat16() -> None:
    """‖k‖² / 2 is close to 2,048, where a bfloat16 column errs by up to 8; scores differ by less."""
    grid = torch.Generator().manual_seed(0)
    q, k = (8 + torch.randint(-6, 7, (1, n, 64), generator=grid).double() / 16 for n in (8, 40))
    v = draw(1, 40, 64, seed=3).bfloat16()
    exact = rbf_attention_reference(q, k, v.double(), 1.0, torch.eye(64, dtype=torch.float64))
    ours = rbf.rbf_attention(q.bfloat16(), k.bfloat16(), v, beta=0.5)
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=0.03)


def test_attention_with_keys_of_equal_norm_is_softmax_attention() -> None:
    q, k, v = (draw(2, 9, 16, seed=seed) for seed in (1, 2, 3))
    k = 4 * F.normalize(k, dim=-1)
    plain = F.scaled_dot_product_attention(q, k, v, scale=2 * BETA)
    torch.testing.assert_close(rbf.rbf_attention(q, k, v, beta=BETA), plain, rtol=0, atol=1e-12)
    assert not torch.allclose(
        rbf.rbf_attention(q, draw(2, 9, 16, seed=2), v, beta=BETA),
        F.scaled_dot_product_attention(q, draw(2, 9, 16, seed=2), v, scale=2 * BETA),
    )


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_sample_at_a_centre_has_finite_gradients(kernel: str) -> None:
    x = draw(3, 8, seed=1, dtype=torch.float32).requires_grad_()
    out = rbf.rbf_feedforward(x, x.detach().clone(), torch.ones(2, 3), beta=1.0, kernel=kernel)
    (gradient,) = torch.autograd.grad(out.sum(), [x])
    assert gradient.isfinite().all()
    assert out.detach().min() >= 0.99


def test_distances_stay_in_float32_under_autocast() -> None:
    x, t = draw(4, 768, seed=1, dtype=torch.float32), draw(20, 768, seed=2, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        distances = rbf.squared_distance(x, t)
    exact = rbf.mahalanobis_reference(x.double(), t.double(), torch.eye(768).double())
    assert distances.dtype == torch.float32
    torch.testing.assert_close(distances.double(), exact, rtol=1e-5, atol=0)


def test_unknown_kernels_and_two_metrics_are_refused() -> None:
    x = torch.ones(1, 2)
    with pytest.raises(ValueError, match="kernel is 'cauchy'; known: gaussian, laplacian"):
        rbf.rbf_attention(x, x, x, beta=1.0, kernel="cauchy")
    with pytest.raises(ValueError, match="expected W, or M, or neither"):
        rbf.rbf_attention(x, x, x, beta=1.0, metric_factor=torch.eye(2), metric=torch.eye(2))


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def perturb(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return module


@pytest.mark.parametrize("samples", [1, 2], ids=["fewer tokens than width", "more"])
def test_attention_layer_equals_the_equation_in_every_head(samples: int) -> None:
    layer = RBFAttention(12, 3, bias=True, dtype=torch.float64)
    perturb(layer)
    x = noise(samples, 7, 12)
    q, k, v = (x @ layer.qkv.weight.T + layer.qkv.bias).split(12, dim=-1)
    sigma, w = (1 / (2 * layer.beta)).sqrt(), layer.metric_factor
    heads = [slice(4 * head, 4 * head + 4) for head in range(3)]
    joined = torch.cat([rbf_attention_reference(q[..., h], k[..., h], v[..., h], sigma, w) for h in heads], dim=-1)
    expected = joined @ layer.projection.weight.T + layer.projection.bias
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("change", [partial(prune.l1_unstructured, name="weight", amount=0.5), weight_norm])
def test_changes_of_the_projection_apply_to_many_tokens(change: Callable[[nn.Linear], Any]) -> None:
    layer = RBFAttention(4, 1, bias=True, dtype=torch.float64)
    perturb(layer)
    change(layer.qkv)
    x = noise(3, 3, 4)
    torch.testing.assert_close(layer(x), torch.cat([layer(one[None]) for one in x]))


def test_hooks_on_the_projection_are_called() -> None:
    layer, seen = RBFAttention(4, 1), []
    layer.qkv.register_forward_hook(lambda *_: seen.append(True))
    layer(noise(3, 3, 4).float())
    assert seen == [True]


def test_projection_of_another_type_keeps_it() -> None:
    layer = RBFAttention(4, 1)
    layer.qkv.bfloat16(), layer.projection.bfloat16()
    assert layer(noise(3, 3, 4).bfloat16()).dtype == torch.bfloat16


def test_attention_layer_with_a_free_metric_has_the_authors_form() -> None:
    layer = RBFAttention(4, 1, metric="free", dtype=torch.float64)
    perturb(layer)
    x = noise(2, 5, 4)
    q, k, v = (x @ layer.qkv.weight.T).split(4, dim=-1)
    mixed = (-layer.beta * free_metric_reference(q, k, layer.metric)).softmax(dim=-1) @ v
    torch.testing.assert_close(layer(x), mixed @ layer.projection.weight.T + layer.projection.bias, rtol=0, atol=1e-9)


def test_feedforward_layer_equals_the_equation() -> None:
    layer = RBFFeedForward(6, 9, 4, metric="factored", beta=0.1, dtype=torch.float64)
    perturb(layer)
    x = noise(3, 6)
    phi = feedforward_reference(x, layer.centers, layer.values.weight.T, layer.beta, layer.metric_factor)
    torch.testing.assert_close(layer(x), phi + layer.values.bias, rtol=0, atol=1e-9)


def test_normalised_laplacian_feedforward_layer_averages_its_values() -> None:
    layer = RBFFeedForward(6, 9, 4, bias=False, kernel="laplacian", normalised=True, beta=0.1, dtype=torch.float64)
    nn.init.constant_(layer.values.weight, 3.0)
    torch.testing.assert_close(layer(noise(3, 6)), torch.full((3, 4), 3.0, dtype=torch.float64), rtol=0, atol=1e-9)
    perturb(layer)
    weights = torch.exp(-layer.beta * mahalanobis_reference(noise(3, 6), layer.centers, torch.eye(6).double()).sqrt())
    expected = weights @ layer.values.weight.T / weights.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(layer(noise(3, 6)), expected, rtol=0, atol=1e-9)


def test_layers_start_as_documented() -> None:
    torch.manual_seed(0)
    attention, feedforward = RBFAttention(768, 4), RBFFeedForward(768, 200, 768, metric="free")
    assert attention.metric_factor is not None and torch.equal(attention.metric_factor, torch.eye(192))
    assert feedforward.metric is not None and torch.equal(feedforward.metric, torch.eye(768))
    assert attention.beta.item() == pytest.approx(192**-0.5)
    assert torch.equal(feedforward.beta, torch.full((200,), 0.001))
    assert feedforward.centers.mean().item() == pytest.approx(0, abs=0.01)
    assert feedforward.centers.var().item() == pytest.approx(1, abs=0.02)


def test_layers_are_created_with_the_given_device_and_type() -> None:
    assert {str(p.device) for p in RBFAttention(8, 2, device="meta").parameters()} == {"meta"}
    assert {p.dtype for p in RBFFeedForward(8, 5, 8, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


def test_invalid_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="num_heads is 3; expected a divisor of embed_dim, which is 8"):
        RBFAttention(8, 3)
    with pytest.raises(ValueError, match="metric is 'learned'; known: euclidean, factored, free"):
        RBFFeedForward(8, 3, 8, metric="learned")
    with pytest.raises(ValueError, match="kernel is 'box'; known: gaussian, laplacian"):
        RBFAttention(8, 2, kernel="box")
