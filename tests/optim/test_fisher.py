"""Captured passes of CG-FAC and K-FAC, and Fisher products compared with explicit matrices."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stages.optim.capture import LayerBatch, LayerCapture, gradient_matrix, select_layers
from stages.optim.fisher import (
    kronecker_factors,
    kronecker_operator,
    kronecker_product,
    kronecker_product_reference,
    per_sample_product,
    per_sample_product_reference,
    update_factors,
)
from tests.optim.layers import dense, make_problem

Product = Callable[[LayerBatch, Tensor], Tensor]
GOLDEN = Path(__file__).parents[1] / "golden" / "fisher_curvlinops.npz"


def test_kronecker_reference_equals_a_hand_calculation() -> None:
    # Two samples of one token: a = 1, 2 and g = 3, 1, so A = (1 + 4) / 2, G = (9 + 1) / 2 and F = 12.5.
    batch = LayerBatch(torch.tensor([[[1.0]], [[2.0]]]), torch.tensor([[[3.0]], [[1.0]]]))
    assert kronecker_product_reference(batch, torch.tensor([[2.0]])).item() == 25.0
    # Per sample: ∇ℓ = 3 and 2, F = (9 + 4) / 2.
    assert per_sample_product_reference(batch, torch.tensor([[2.0]])).item() == 13.0


@pytest.mark.parametrize(("product", "stored"), [(kronecker_product, "kronecker"), (per_sample_product, "per_sample")])
def test_product_equals_the_matrix_of_a_released_library(product: Product, stored: str) -> None:
    with np.load(GOLDEN) as file:
        vectors = dict(file)
    problem = make_problem()
    names = {"mix.weight": "0.weight", "mix.bias": "0.bias", "head.weight": "3.weight", "head.bias": "3.bias"}
    problem.network.load_state_dict(
        {ours: torch.from_numpy(vectors[f"weights/{theirs}"]) for ours, theirs in names.items()}
    )
    problem.tokens, problem.labels = torch.from_numpy(vectors["tokens"]), torch.from_numpy(vectors["labels"])
    order = torch.tensor([0, 1, 2, 4, 5, 6, 3, 7])  # theirs has the bias after the whole weight, ours in each row
    batch = problem.captured()
    matrix = dense(lambda v: product(batch, v), (batch.gradients.shape[-1], batch.inputs.shape[-1]))[order][:, order]
    np.testing.assert_allclose(matrix.numpy(), vectors[stored], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("samples", "tokens"), [(1, 4), (2, 4), (7, 13)])
def test_operator_equals_the_printed_product_in_both_summation_orders(samples: int, tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    a, g = (torch.randn(samples, tokens, width, generator=generator, dtype=torch.float64) for width in (11, 5))
    batch, v = LayerBatch(a, g), torch.randn(5, 11, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(
        kronecker_operator(batch)(v), kronecker_product_reference(batch, v), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(
    ("fast", "reference"),
    [(kronecker_product, kronecker_product_reference), (per_sample_product, per_sample_product_reference)],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-4)])
def test_fast_product_equals_the_printed_one(
    fast: Product, reference: Product, dtype: torch.dtype, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    batch = LayerBatch(
        torch.randn(7, 13, 11, generator=generator, dtype=dtype),
        torch.randn(7, 13, 5, generator=generator, dtype=dtype),
    )
    v = torch.randn(5, 11, generator=generator, dtype=dtype)
    torch.testing.assert_close(fast(batch, v), reference(batch, v), rtol=tolerance, atol=tolerance)


def test_running_factors_decay_from_the_identity() -> None:
    batch, state = make_problem().captured(), {}
    a, g = kronecker_factors(batch)
    update_factors(state, batch, 0.95)
    update_factors(state, batch, 0.95)
    expected = 0.95 * (0.95 * torch.eye(4, dtype=torch.float64) + 0.05 * a) + 0.05 * a
    torch.testing.assert_close(state["input_factor"], expected, rtol=0, atol=1e-12)
    update_factors(state, batch, 0.0)
    assert torch.equal(state["gradient_factor"], g)


@pytest.mark.parametrize("bias", [True, False])
def test_captured_inputs_and_gradients_give_the_layers_gradient(bias: bool) -> None:
    problem = make_problem(bias=bias)
    batch = problem.captured()
    assert batch.inputs.shape == (5, 4, 4 if bias else 3) and batch.gradients.shape == (5, 4, 2)
    summed = torch.einsum("bto,bti->oi", batch.gradients, batch.inputs) / 5
    torch.testing.assert_close(summed, gradient_matrix(problem.network.mix), rtol=0, atol=1e-12)


def test_captured_gradients_belong_to_single_samples() -> None:
    problem = make_problem()
    batch = problem.captured()
    by_sample = torch.einsum("bto,bti->boi", batch.gradients, batch.inputs)
    torch.testing.assert_close(by_sample, problem.sample_gradients(), rtol=0, atol=1e-12)


def test_pass_is_taken_once_and_cleared() -> None:
    problem = make_problem()
    capture = LayerCapture(problem.network, ("mix", "head"))
    problem.loss().backward()
    capture.take("mix")
    capture.clear()
    for name in ("mix", "head"):
        with pytest.raises(RuntimeError, match="no pass was captured"):
            capture.take(name)


def test_layer_used_twice_adds_tokens() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"layer": nn.Linear(3, 3)})
    capture = LayerCapture(model, ("layer",))
    x = torch.randn(5, 2, 3)
    model["layer"](model["layer"](x)).square().sum(dim=(1, 2)).mean().backward()
    batch = capture.take("layer")
    assert batch.inputs.shape == (5, 4, 4)
    layer = model["layer"]
    assert isinstance(layer, nn.Linear)
    summed = torch.einsum("bto,bti->oi", batch.gradients, batch.inputs) / 5
    torch.testing.assert_close(summed, gradient_matrix(layer), rtol=1e-5, atol=1e-5)


def test_layers_match_patterns_and_an_unmatched_one_is_refused() -> None:
    model = nn.ModuleDict({"attention": nn.ModuleDict({"qkv": nn.Linear(2, 6), "norm": nn.LayerNorm(2)})})
    assert list(select_layers(model, ("*qkv",))) == ["attention.qkv"]
    with pytest.raises(ValueError, match=r"'\*norm' matches no nn.Linear of the model; it has attention.qkv"):
        select_layers(model, ("*qkv", "*norm"))
