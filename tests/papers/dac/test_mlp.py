from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from stages.evaluation.cost import count_parameters
from stages.ops.dac import dac_linear
from stages.ops.dac_layers import DACLinear
from stages.papers.dac import DACMLP, MLP
from stages.papers.dac.mlp import hidden_widths, matched_width

KINDS = [MLP, DACMLP]
FEATURES = 14


def rectangular(kind: type[nn.Module], depth: int, width: int) -> nn.Module:
    return kind(in_features=FEATURES, depth=depth, width=width, last_width=width)


def draw_rows(n: int = 64) -> torch.Tensor:
    return torch.randn(n, FEATURES, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("kind", "depth", "width", "expected"),
    [(MLP, 5, 16, 1_425), (MLP, 16, 250, 949_251), (MLP, 5, 100, 42_501), (DACMLP, 5, 71, 42_814)],
)
def test_networks_have_the_computed_parameters(kind: type[nn.Module], depth: int, width: int, expected: int) -> None:
    assert count_parameters(rectangular(kind, depth, width)) == expected


def test_matched_widths_are_those_of_figure_4() -> None:
    assert [matched_width(width) for width in (25, 50, 100, 200)] == [18, 35, 71, 141]


@pytest.mark.parametrize("depth", [5, 8, 16])
@pytest.mark.parametrize("width", [25, 50, 100, 200])
def test_matched_networks_have_about_as_many_parameters(depth: int, width: int) -> None:
    base, dac = rectangular(MLP, depth, width), rectangular(DACMLP, depth, matched_width(width))
    assert count_parameters(dac) / count_parameters(base) == pytest.approx(1, abs=0.06)


def test_widths_are_constant_or_fall_evenly() -> None:
    assert hidden_widths(4, 30, 30) == [30, 30, 30, 30]
    assert hidden_widths(5, 100, 20) == [100, 80, 60, 40, 20]


def test_impossible_widths_are_refused() -> None:
    for sizes in ((1, 20, 20), (5, 20, 30), (5, 20, 0)):
        with pytest.raises(ValueError, match="depth, width, last_width are"):
            hidden_widths(*sizes)


def test_base_is_dense_norm_relu_then_one_linear_unit() -> None:
    torch.manual_seed(0)
    model, x = rectangular(MLP, 3, 6).double().train(), draw_rows().double()
    y = x
    *hidden, last = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for layer in hidden:
        assert layer.bias is None
        y = y @ layer.weight.T
        y = ((y - y.mean(0)) / (y.var(0, unbiased=False) + 1e-5).sqrt()).relu()
    torch.testing.assert_close(model(x), y @ last.weight.T + last.bias, rtol=1e-9, atol=1e-9)


def test_dac_activates_its_input_and_everything_behind_it_by_own_biases() -> None:
    torch.manual_seed(0)
    model, x = rectangular(DACMLP, 3, 6).double().train(), draw_rows().double()
    connections = [module for module in model.modules() if isinstance(module, DACLinear)]
    assert len(connections) == 4
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_()
        model.output_bias.fill_(3.0)
    *hidden, last = connections
    y = x
    for layer in hidden:
        y = dac_linear(y, layer.weight, layer.bias)
        y = (y - y.mean(0)) / (y.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(model(x), dac_linear(y, last.weight, last.bias) + 3, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_start_he_normal_and_biases_zero(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    for name, parameter in rectangular(kind, 5, 100).named_parameters():
        if name.endswith("bias"):
            assert parameter.abs().max() == 0, name
        elif parameter.ndim == 2:
            variance, n = 2 / parameter.shape[1], parameter.numel()
            assert parameter.mean().item() == pytest.approx(0, abs=5 * math.sqrt(variance / n)), name
            assert parameter.var().item() == pytest.approx(variance, rel=6 * math.sqrt(2 / n)), name
        else:
            assert torch.equal(parameter, torch.ones_like(parameter)), name


@pytest.mark.parametrize("kind", KINDS)
def test_only_connection_weights_are_decayed_by_name(kind: type[nn.Module]) -> None:
    model = rectangular(kind, 3, 6)
    decayed = [name for name, p in model.named_parameters() if name.endswith("weight") and p.ndim >= 2]
    step = 3 if kind is MLP else 2
    assert decayed == [*(f"layers.{step * layer}.weight" for layer in range(3)), "head.weight"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_prediction_a_row_which_no_other_row_changes_in_evaluation(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, rows = rectangular(kind, 3, 6).eval(), draw_rows(4)
    changed = rows.clone()
    changed[1] += 1
    with torch.no_grad():
        before, after = model(rows), model(changed)
    assert before.shape == (4, 1)
    assert (before != after).flatten().tolist() == [False, True, False, False]


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_gets_a_gradient(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = rectangular(kind, 3, 12)
    (model(draw_rows()) - draw_rows().sum(1, keepdim=True)).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
