from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from stages.optim.capture import LayerCapture, gradient_matrix, replace_gradient, select_layers
from tests.optim.layers import make_problem


@pytest.mark.parametrize("bias", [True, False])
def test_captured_inputs_and_gradients_make_the_layers_gradient(bias: bool) -> None:
    problem = make_problem(bias=bias)
    batch = problem.captured()
    assert batch.inputs.shape == (5, 4, 4 if bias else 3) and batch.gradients.shape == (5, 4, 2)
    summed = torch.einsum("bto,bti->oi", batch.gradients, batch.inputs) / 5
    torch.testing.assert_close(summed, gradient_matrix(problem.network.mix), rtol=0, atol=1e-12)


def test_captured_gradients_are_those_of_each_samples_own_loss() -> None:
    problem = make_problem()
    batch = problem.captured()
    by_sample = torch.einsum("bto,bti->boi", batch.gradients, batch.inputs)
    torch.testing.assert_close(by_sample, problem.sample_gradients(), rtol=0, atol=1e-12)


def test_evaluation_and_copies_leave_nothing_behind() -> None:
    problem = make_problem()
    capture = LayerCapture(problem.network, ("mix",))
    with torch.inference_mode():
        problem.loss()
    twin = copy.deepcopy(problem.network)
    twin(problem.tokens).sum().backward()
    with pytest.raises(RuntimeError, match="mix has a gradient, but no pass was captured"):
        capture.take("mix")


def test_a_pass_is_taken_once_and_clearing_drops_it() -> None:
    problem = make_problem()
    capture = LayerCapture(problem.network, ("mix", "head"))
    problem.loss().backward()
    capture.take("mix")
    capture.clear()
    for name in ("mix", "head"):
        with pytest.raises(RuntimeError, match="no pass was captured"):
            capture.take(name)


def test_half_precision_passes_are_captured_in_float32() -> None:
    problem = make_problem()
    network, tokens = problem.network.float(), problem.tokens.float()
    capture = LayerCapture(network, ("mix",))
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(tokens)
    logits.float().sum().backward()
    batch = capture.take("mix")
    assert batch.inputs.dtype == batch.gradients.dtype == torch.float32
    assert gradient_matrix(network.mix).dtype == torch.float32


def test_a_layer_used_twice_adds_to_its_tokens() -> None:
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


def test_layers_are_chosen_by_name_and_a_pattern_without_a_match_is_refused() -> None:
    model = nn.ModuleDict({"attention": nn.ModuleDict({"qkv": nn.Linear(2, 6), "norm": nn.LayerNorm(2)})})
    assert list(select_layers(model, ("*qkv",))) == ["attention.qkv"]
    with pytest.raises(ValueError, match=r"'\*norm' matches no nn.Linear of the model; it has attention.qkv"):
        select_layers(model, ("*qkv", "*norm"))


def test_replaced_gradient_is_read_back() -> None:
    problem = make_problem()
    problem.loss().backward()
    direction = torch.arange(8.0, dtype=torch.float64).reshape(2, 4)
    replace_gradient(problem.network.mix, direction)
    assert torch.equal(gradient_matrix(problem.network.mix), direction)
