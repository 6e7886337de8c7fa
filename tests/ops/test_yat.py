"""Yat layers compared with the printed equation, hand calculations and the released package."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.ops.yat import (
    ScaleReading,
    YatAttention,
    YatConv2d,
    YatEpsilon,
    YatLinear,
    YatScale,
    guide_scale,
    yat_attention,
    yat_conv2d,
    yat_linear,
    yat_ratio,
)
from tests.ops.gradients import check_layer, draw, load_case

WIDE = torch.float64


@pytest.mark.parametrize("b", [0.0, 5.0, -1000.0])
def test_integer_unit_equal_to_its_input_is_exact(b: float) -> None:
    """At distance 0 without rounding the response is (‖w‖² + b)² / ε, and the distance has no gradient."""
    w = torch.tensor([[3.0, -4, 12]])
    x, bias = w.clone().requires_grad_(), torch.tensor([b], requires_grad=True)
    response = yat_linear(x, w, bias, epsilon=1e-5)
    torch.testing.assert_close(response, torch.tensor([[(169 + b) ** 2 / 1e-5]]), rtol=1e-6, atol=0)
    response.backward()
    torch.testing.assert_close(x.grad, 2 * (169 + b) * w / 1e-5, rtol=1e-6, atol=0)
    torch.testing.assert_close(bias.grad, torch.tensor([2 * (169 + b) / 1e-5]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_units_equal_to_their_inputs_stay_between_zero_and_the_peak(dtype: torch.dtype) -> None:
    x = draw(256, 768).to(dtype)
    norms = x.double().square().sum(-1)
    leaf = x.clone().requires_grad_()
    response = yat_linear(leaf, x, epsilon=1e-5)
    response.sum().backward()
    assert leaf.grad is not None and leaf.grad.isfinite().all()
    met = response.diagonal().double()
    assert (response >= 0).all()
    assert (met <= norms.square() / 1e-5 * (1 + 2**-7)).all()
    # The distance errs by at most 16 ulp of the norms, depending on the processor.
    assert (met >= norms.square() / (1e-5 + 32 * torch.finfo(torch.float32).eps * norms) * (1 - 2**-7)).all()


def test_negative_rounded_distance_counts_as_zero() -> None:
    """One feature: every product is rounded once, equally on every processor."""
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


def test_guide_scale_equals_equation_two() -> None:
    assert guide_scale(torch.tensor(1.0, dtype=WIDE), 128).item() == pytest.approx(128 / math.log(129), rel=1e-12)
    assert guide_scale(torch.tensor(0.5, dtype=WIDE), 9).item() == pytest.approx(math.sqrt(9 / math.log(10)))


def test_readings_of_the_scale_differ_in_value_and_gradient() -> None:
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
def test_constant_scales_are_not_trained(reading: ScaleReading, expected: float, alphas: int) -> None:
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


def test_dense_replaces_a_linear() -> None:
    torch.manual_seed(0)
    assert isinstance(YatLinear(4, 3), nn.Linear)
    assert YatLinear(4, 3, False, None, WIDE)(draw(2, 4)).shape == (2, 3)
    assert sum(p.numel() for p in YatLinear(64, 128, bias=False).parameters()) == 64 * 128 + 1


PACKAGE = {
    "qkv.weight": ["q_proj.weight", "k_proj.weight", "v_proj.weight"],
    "qkv.bias": ["q_proj.bias", "k_proj.bias", "v_proj.bias"],
    "projection.weight": ["out_proj.weight"],
    "projection.bias": ["out_proj.bias"],
    "scale.alpha": ["alpha"],
}


def of_attention() -> list[Tensor]:
    """Return q, k, v, scale, epsilon: 2 heads, 5 queries, 7 keys."""
    return [draw(3, 2, 5, 4), draw(3, 2, 7, 4, seed=1), draw(3, 2, 7, 6, seed=2), torch.tensor(0.7), torch.tensor(0.3)]


def test_query_without_keys_gets_zeros_as_in_the_package() -> None:
    layer = YatAttention(6, 2, bias=False, scale="package")
    names = {ours: theirs for ours, theirs in PACKAGE.items() if not ours.endswith("bias")}
    mask = load_case("attention_keyless")["mask"]
    check_layer(layer, "attention_keyless", names, attn_mask=mask)
    q, k, v, s, eps = of_attention()
    nothing = torch.zeros(5, 7, dtype=torch.bool)
    leaf = q.requires_grad_()
    mixed = yat_attention(leaf, k, v, nothing, scale=s, epsilon=eps)
    mixed.sum().backward()
    assert mixed.abs().max() == 0
    assert leaf.grad is not None and leaf.grad.abs().max() == 0


def test_causal_mask_combines_with_a_given_mask() -> None:
    q, k, v, s, eps = of_attention()
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[:, 1] = False
    both = yat_attention(q, k, v, mask, is_causal=True, scale=s, epsilon=eps)
    one = yat_attention(q, k, v, mask & torch.ones(5, 7, dtype=torch.bool).tril(), scale=s, epsilon=eps)
    assert torch.equal(both, one)


def test_spherical_attention_ignores_the_norms_of_queries_and_keys() -> None:
    q, k, v, s, _ = of_attention()
    once, scaled = (yat_attention(q * f, k * f, v, scale=s, epsilon=1e-12, is_spherical=True) for f in (1, 10))
    torch.testing.assert_close(once, scaled, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("is_spherical", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equal_queries_and_keys_give_finite_values_and_gradients(dtype: torch.dtype, is_spherical: bool) -> None:
    """With q = k the diagonal's distance is 0 or rounding; ε = 0.1, because the score there is ‖q‖⁴ / ε."""
    q = draw(2, 2, 32, 64).to(dtype).requires_grad_()
    mixed = yat_attention(q, q, q, is_causal=True, epsilon=0.1, is_spherical=is_spherical)
    mixed.float().square().sum().backward()
    assert mixed.dtype == dtype
    assert mixed.isfinite().all()
    assert q.grad is not None and q.grad.isfinite().all()


def test_package_scale_divides_by_the_root_of_the_head_dimension() -> None:
    torch.manual_seed(0)
    learned, package = YatAttention(12, 3).double(), YatAttention(12, 3, scale="package").double()
    package.load_state_dict(learned.state_dict())
    package.scale.alpha.data.fill_(2.0)  # √E = 2
    torch.testing.assert_close(package(draw(2, 5, 12)), learned(draw(2, 5, 12)))


def test_dropout_acts_on_weights_during_training_only() -> None:
    torch.manual_seed(0)
    layer = YatAttention(12, 3, dropout=0.5).double()
    x = draw(2, 5, 12)
    assert not torch.equal(layer.train()(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize(
    ("kernel_size", "dilation", "padding"), [((3, 3), 1, "same"), ((2, 4), 3, "same"), ((3, 2), 2, "valid")]
)
def test_padding_by_name_equals_pytorchs(kernel_size: tuple[int, int], dilation: int, padding: str) -> None:
    x, w = draw(1, 2, 9, 8), draw(3, 2, *kernel_size, seed=1)
    pads = []
    for size in reversed(kernel_size):
        reach = dilation * (size - 1) if padding == "same" else 0
        pads += [reach // 2, reach - reach // 2]
    by_hand = yat_conv2d(F.pad(x, pads), w, dilation=dilation)
    torch.testing.assert_close(yat_conv2d(x, w, padding=padding, dilation=dilation), by_hand)


def test_unknown_padding_name_is_refused() -> None:
    with pytest.raises((ValueError, RuntimeError), match=r"[Pp]adding"):
        yat_conv2d(draw(1, 2, 5, 5), draw(3, 2, 3, 3), padding="full")


def test_patch_equal_to_its_kernel_is_clamped() -> None:
    """Float32 patches of 2,304 numbers equal to their kernel have no negative distance and finite gradients."""
    x = draw(64, 256, 3, 3).float()
    leaf = x.clone().requires_grad_()
    response = yat_conv2d(leaf, x, epsilon=1e-5)
    response.sum().backward()
    assert (response >= 0).all()
    assert leaf.grad is not None and leaf.grad.isfinite().all()
    assert (response.flatten().topk(64).values > 1e6).all()


def test_conv_starts_like_pytorchs() -> None:
    torch.manual_seed(0)
    ours = YatConv2d(16, 32, 3)
    torch.manual_seed(0)
    plain = nn.Conv2d(16, 32, 3)
    assert torch.equal(ours.weight, plain.weight)
    assert torch.equal(ours.bias, plain.bias)
    assert ours.weight.var().item() == pytest.approx(1 / (16 * 9) / 3, rel=0.05)


def test_conv_replaces_a_pytorch_conv() -> None:
    layer = YatConv2d(4, 8, (3, 5), (2, 1), (1, 2), 1, 2, False, "circular", None, WIDE)
    plain = nn.Conv2d(4, 8, (3, 5), (2, 1), (1, 2), 1, 2, False, "circular", None, WIDE)
    assert layer(draw(2, 4, 9, 9)).shape == plain(draw(2, 4, 9, 9)).shape
    assert isinstance(layer, nn.Conv2d)
    assert dict(layer.named_parameters()).keys() - {"scale.alpha"} == dict(plain.named_parameters()).keys()


DENSE = {"weight": ["weight"], "bias": ["bias"], "scale.alpha": ["alpha"], "epsilon.raw": ["epsilon_param"]}


@pytest.mark.parametrize(
    ("case", "layer", "keywords"),
    [
        ("dense", YatLinear(5, 7, scale="multiplier"), {}),
        ("dense_plain", YatLinear(5, 7, bias=False, scale=None, epsilon=0.007), {}),
        ("dense_constant", YatLinear(5, 7, scale=math.sqrt(2)), {}),
        ("dense_learned_epsilon", YatLinear(5, 7, scale="multiplier", learnable_epsilon=True), {}),
        ("conv", YatConv2d(4, 6, 3, scale="multiplier"), {}),
        ("conv_full", YatConv2d(4, 6, 3, 2, (1, 2), 2, 2, scale="multiplier"), {}),
        ("conv_same", YatConv2d(4, 6, 3, padding="same", bias=False, scale="multiplier", epsilon=0.007), {}),
        ("conv_reflect", YatConv2d(4, 6, 3, padding=1, padding_mode="reflect", scale="multiplier"), {}),
        ("attention", YatAttention(6, 2, scale="package"), {}),
        ("attention_causal", YatAttention(6, 2, scale="package", epsilon=0.1), {"is_causal": True}),
        ("attention_spherical", YatAttention(6, 2, scale="package", epsilon=0.1, is_spherical=True), {}),
    ],
)
def test_layer_equals_the_released_package(case: str, layer: nn.Module, keywords: dict[str, Any]) -> None:
    theirs = PACKAGE if isinstance(layer, YatAttention) else DENSE
    check_layer(layer, case, {name: theirs[name] for name, _ in layer.named_parameters()}, **keywords)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (partial(YatLinear, 4, 3, scale="sqrt"), "scale is 'sqrt'; known: guide, multiplier, a number, None"),
        (partial(YatLinear, 4, 3, epsilon=0.0), "epsilon is 0.0; expected a positive number"),
        (partial(YatLinear, 4, 3, epsilon=math.inf), "epsilon is inf"),
        (partial(YatAttention, 12, 5), "num_heads is 5; expected a divisor of embed_dim, which is 12"),
        (partial(YatAttention, 12, 3, scale="sqrt"), "scale is 'sqrt'; known: learned, package"),
    ],
)
def test_invalid_options_are_refused(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
