"""The Yat product and its dense layer against the printed equation, hand-worked numbers and the released package."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from stages.ops.yat import (
    ScaleReading,
    YatEpsilon,
    YatLinear,
    YatScale,
    guide_scale,
    yat_linear,
    yat_linear_reference,
    yat_ratio,
)
from tests.ops.yat_evidence import check_form, check_half, check_layer

WIDE = torch.float64


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=WIDE)


def tensors() -> list[Tensor]:
    """x, weight, bias, scale, epsilon; sizes that no blocking divides."""
    return [draw(3, 5, 7), draw(11, 7, seed=1), draw(11, seed=2), torch.tensor(1.3), torch.tensor(0.05)]


def fast(x: Tensor, w: Tensor, b: Tensor, s: Tensor, eps: Tensor) -> Tensor:
    return yat_linear(x, w, b, scale=s, epsilon=eps)


def test_reference_gives_a_hand_worked_case() -> None:
    # w·x + b = 2 + 2 - 1 = 3, ‖w - x‖² = 1 + 1 = 2; the second unit is the first's weights turned away.
    x, w = torch.tensor([[1.0, 2]]), torch.tensor([[2.0, 1], [-2, -1]])
    outputs = yat_linear_reference(x, w, torch.tensor([-1.0, 0]), 2.0, 0.25)
    torch.testing.assert_close(outputs, torch.tensor([[2 * 9 / 2.25, 2 * 16 / 18.25]]))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-4)])
def test_dense_equals_reference_in_value_and_gradients(dtype: torch.dtype, tolerance: float) -> None:
    check_form(fast, yat_linear_reference, tensors(), dtype, tolerance)


def test_dense_in_bfloat16_errs_no_more_than_pytorch() -> None:
    check_half(fast, yat_linear_reference, tensors())


@pytest.mark.parametrize(
    ("case", "layer"),
    [
        ("dense", YatLinear(5, 7, scale="multiplier")),
        ("dense_plain", YatLinear(5, 7, bias=False, scale=None, epsilon=0.007)),
        ("dense_constant", YatLinear(5, 7, scale=math.sqrt(2))),
        ("dense_learned_epsilon", YatLinear(5, 7, scale="multiplier", learnable_epsilon=True)),
    ],
)
def test_dense_equals_the_released_package(case: str, layer: YatLinear) -> None:
    theirs = {"weight": "weight", "bias": "bias", "scale.alpha": "alpha", "epsilon.raw": "epsilon_param"}
    check_layer(layer, case, {name: [theirs[name]] for name, _ in layer.named_parameters()})


@pytest.mark.parametrize("b", [0.0, 5.0, -1000.0])
def test_a_unit_of_integers_that_meets_its_input_is_exact(b: float) -> None:
    """Distance 0 without rounding: the response is (‖w‖² + b)² / ε, and the distance gives no gradient."""
    w = torch.tensor([[3.0, -4, 12]])
    x, bias = w.clone().requires_grad_(), torch.tensor([b], requires_grad=True)
    response = yat_linear(x, w, bias, epsilon=1e-5)
    torch.testing.assert_close(response, torch.tensor([[(169 + b) ** 2 / 1e-5]]), rtol=1e-6, atol=0)
    response.backward()
    torch.testing.assert_close(x.grad, 2 * (169 + b) * w / 1e-5, rtol=1e-6, atol=0)
    torch.testing.assert_close(bias.grad, torch.tensor([2 * (169 + b) / 1e-5]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_units_that_meet_their_inputs_stay_between_zero_and_the_peak(dtype: torch.dtype) -> None:
    x = draw(256, 768).to(dtype)
    norms = x.double().square().sum(-1)
    leaf = x.clone().requires_grad_()
    response = yat_linear(leaf, x, epsilon=1e-5)
    response.sum().backward()
    assert leaf.grad is not None and leaf.grad.isfinite().all()
    met = response.diagonal().double()
    assert (response >= 0).all()
    assert (met <= norms.square() / 1e-5 * (1 + 2**-7)).all()
    # The error of the distance is within 16 units in the last place of the norms; how large depends on the processor.
    assert (met >= norms.square() / (1e-5 + 32 * torch.finfo(torch.float32).eps * norms) * (1 - 2**-7)).all()


def test_a_distance_that_rounding_makes_negative_counts_as_zero() -> None:
    """One feature: every product is rounded once, in the same way on every processor."""
    x = 1 + torch.rand(256, generator=torch.Generator().manual_seed(0))
    w = torch.nextafter(x, torch.tensor(2.0))
    unclamped = x.square() + w.square() - 2 * (x * w)
    x, w, epsilon = x[unclamped < 0, None], w[unclamped < 0, None], 1e-8
    assert len(x) > 10 and (unclamped + epsilon < 0).any()
    leaf = x.clone().requires_grad_()
    response = yat_ratio(leaf @ w.T, leaf.square() + w.T.square(), 1.0, epsilon)
    torch.testing.assert_close(response.diagonal(), (x * w).square().flatten() / epsilon)
    response.diagonal().sum().backward()
    torch.testing.assert_close(leaf.grad, 2 * x * w.square() / epsilon)


def test_responses_do_not_decay_far_away() -> None:
    """The guide says that they do; along a direction u they go to (w·u)², from below or above."""
    w, u = torch.tensor([[1.0, 2]], dtype=WIDE), torch.tensor([[0.6, 0.8]], dtype=WIDE)
    far = yat_linear(torch.tensor([[1e3], [1e6]], dtype=WIDE) * u, w).flatten()
    torch.testing.assert_close(far, (w @ u.T).square().expand(2, 1).flatten(), rtol=1e-2, atol=0)
    assert abs(far[1] / (w @ u.T).square() - 1) < 1e-5


def test_scores_are_float32_under_autocast_and_outputs_keep_the_type_of_the_inputs() -> None:
    x, w, b, s, eps = (t.float() for t in tensors())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast(x, w, b, s, eps), fast(x.clone(), w, b, s, eps))
        assert fast(x.bfloat16(), w, b, s, eps).dtype == torch.bfloat16
        inside = fast(x, w, b, s, eps)
    assert torch.equal(inside, fast(x, w, b, s, eps))


def test_guide_scale_is_that_of_equation_two() -> None:
    assert guide_scale(torch.tensor(1.0, dtype=WIDE), 128).item() == pytest.approx(128 / math.log(129), rel=1e-12)
    assert guide_scale(torch.tensor(0.5, dtype=WIDE), 9).item() == pytest.approx(math.sqrt(9 / math.log(10)))


def test_readings_of_the_scale_differ_in_value_and_in_the_gradient_of_alpha() -> None:
    base = 128 / math.log(129)
    slopes = {}
    for reading in ("guide", "multiplier"):
        scale = YatScale(128, reading).double()
        s = scale()
        assert isinstance(s, Tensor) and scale.alpha is not None
        slopes[reading] = (s.item(), torch.autograd.grad(s, scale.alpha)[0].item())
    assert slopes["guide"] == pytest.approx((base, base * math.log(base)))
    assert slopes["multiplier"] == (1.0, 1.0)


@pytest.mark.parametrize(("reading", "expected", "alphas"), [(None, 1.0, 0), (1.5, 1.5, 0), ("multiplier", 1.0, 1)])
def test_constant_scales_are_not_learned(reading: ScaleReading, expected: float, alphas: int) -> None:
    scale = YatScale(5, reading)
    value = scale()
    value = value.item() if isinstance(value, Tensor) else value
    assert (value, sum(p.numel() for p in scale.parameters())) == (expected, alphas)


@pytest.mark.parametrize("value", [1e-8, 1e-5, 0.007, 1 / 137, 30.0])
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 3e-6), (torch.float64, 1e-9)])
def test_learned_epsilon_starts_at_its_value(value: float, dtype: torch.dtype, rel: float) -> None:
    epsilon = YatEpsilon(value, is_learned=True, dtype=dtype)()
    assert isinstance(epsilon, Tensor) and epsilon.item() == pytest.approx(value, rel=rel)


def test_learned_epsilon_stays_positive() -> None:
    epsilon = YatEpsilon(0.1, is_learned=True)
    assert epsilon.raw is not None
    epsilon.raw.data.fill_(-40)
    value = epsilon()
    assert isinstance(value, Tensor) and value.item() > 0


def test_dense_starts_xavier_normal_with_uniform_biases() -> None:
    torch.manual_seed(0)
    layer = YatLinear(400, 600)
    assert layer.weight.mean().item() == pytest.approx(0, abs=4e-4)
    assert layer.weight.var().item() == pytest.approx(2 / 1000, rel=0.02)
    assert layer.bias.abs().max().item() <= 1 / 20
    assert layer.bias.var().item() == pytest.approx(1 / 400 / 3, rel=0.1)
    assert [p.item() for name, p in layer.named_parameters() if name == "scale.alpha"] == [1.0]


def test_dense_stands_where_a_linear_stood() -> None:
    torch.manual_seed(0)
    assert isinstance(YatLinear(4, 3), nn.Linear)
    assert YatLinear(4, 3, False, None, WIDE)(draw(2, 4)).shape == (2, 3)
    assert sum(p.numel() for p in YatLinear(64, 128, bias=False).parameters()) == 64 * 128 + 1


@pytest.mark.slow
def test_dense_compiles_into_one_graph() -> None:
    layer, x = YatLinear(4, 3, learnable_epsilon=True), draw(2, 4).float()
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))  # eager has the fast path, whose sums are in another order


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"scale": "sqrt"}, "scale is 'sqrt'; known: guide, multiplier, a number, None"),
        ({"epsilon": 0.0}, "epsilon is 0.0; expected a positive number"),
        ({"epsilon": math.inf}, "epsilon is inf"),
    ],
)
def test_impossible_options_are_refused(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        YatLinear(4, 3, **keywords)  # type: ignore[arg-type]
