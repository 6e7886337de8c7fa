"""Yat attention against the printed equation, hand-worked numbers and the released package."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stages.ops.yat_attention import YatAttention, yat_attention, yat_attention_reference
from tests.ops.yat_evidence import check_form, check_half, check_layer, load_case

WIDE = torch.float64
PACKAGE = {
    "qkv.weight": ["q_proj.weight", "k_proj.weight", "v_proj.weight"],
    "qkv.bias": ["q_proj.bias", "k_proj.bias", "v_proj.bias"],
    "projection.weight": ["out_proj.weight"],
    "projection.bias": ["out_proj.bias"],
    "scale.alpha": ["alpha"],
}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=WIDE)


def tensors() -> list[Tensor]:
    """q, k, v, scale, epsilon: 2 heads, 5 queries, 7 keys."""
    return [draw(3, 2, 5, 4), draw(3, 2, 7, 4, seed=1), draw(3, 2, 7, 6, seed=2), torch.tensor(0.7), torch.tensor(0.3)]


def fast(q: Tensor, k: Tensor, v: Tensor, s: Tensor, eps: Tensor) -> Tensor:
    return yat_attention(q, k, v, scale=s, epsilon=eps)


def test_reference_gives_a_hand_worked_case() -> None:
    # Scores (2·1)² / (1 + 1) = 2 and (2·3)² / (1 + 1) = 18; s = ln 3 / 16 makes their weights 1/4 and 3/4.
    q, k, v = torch.tensor([[2.0]]), torch.tensor([[1.0], [3.0]]), torch.tensor([[4.0, 0], [0, 8]])
    mixed = yat_attention_reference(q, k, v, math.log(3) / 16, 1.0)
    torch.testing.assert_close(mixed, torch.tensor([[1.0, 6]]))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-4)])
def test_attention_equals_reference_in_value_and_gradients(dtype: torch.dtype, tolerance: float) -> None:
    check_form(fast, yat_attention_reference, tensors(), dtype, tolerance)


def test_attention_in_bfloat16_errs_no_more_than_pytorch() -> None:
    check_half(fast, yat_attention_reference, tensors())


@pytest.mark.parametrize(
    ("case", "options", "is_causal"),
    [
        ("attention", {}, False),
        ("attention_causal", {"epsilon": 0.1}, True),
        ("attention_spherical", {"epsilon": 0.1, "is_spherical": True}, False),
    ],
)
def test_attention_equals_the_released_package(case: str, options: dict[str, float], is_causal: bool) -> None:
    layer = YatAttention(6, 2, scale="package", **options)  # type: ignore[arg-type]
    check_layer(layer, case, PACKAGE, is_causal=is_causal)  # type: ignore[arg-type]


def test_a_query_without_a_key_gets_zeros_as_in_the_package() -> None:
    layer = YatAttention(6, 2, bias=False, scale="package")
    names = {ours: theirs for ours, theirs in PACKAGE.items() if not ours.endswith("bias")}
    mask = load_case("attention_keyless")["mask"]
    check_layer(layer, "attention_keyless", names, attn_mask=mask)
    q, k, v, s, eps = tensors()
    nothing = torch.zeros(5, 7, dtype=torch.bool)
    leaf = q.requires_grad_()
    mixed = yat_attention(leaf, k, v, nothing, scale=s, epsilon=eps)
    mixed.sum().backward()
    assert mixed.abs().max() == 0
    assert leaf.grad is not None and leaf.grad.abs().max() == 0


def test_causal_mask_joins_a_given_mask() -> None:
    q, k, v, s, eps = tensors()
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[:, 1] = False
    both = yat_attention(q, k, v, mask, is_causal=True, scale=s, epsilon=eps)
    one = yat_attention(q, k, v, mask & torch.ones(5, 7, dtype=torch.bool).tril(), scale=s, epsilon=eps)
    assert torch.equal(both, one)


def test_spherical_attention_ignores_the_length_of_queries_and_keys() -> None:
    q, k, v, s, _ = tensors()
    once, scaled = (yat_attention(q * f, k * f, v, scale=s, epsilon=1e-12, is_spherical=True) for f in (1, 10))
    torch.testing.assert_close(once, scaled, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("is_spherical", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_queries_that_equal_keys_give_finite_values_and_gradients(dtype: torch.dtype, is_spherical: bool) -> None:
    """With q = k the diagonal's distance is 0 or rounding; ε = 0.1, since the score there is ‖q‖⁴ / ε."""
    q = draw(2, 2, 32, 64).to(dtype).requires_grad_()
    mixed = yat_attention(q, q, q, is_causal=True, epsilon=0.1, is_spherical=is_spherical)
    mixed.float().square().sum().backward()
    assert mixed.dtype == dtype
    assert mixed.isfinite().all()
    assert q.grad is not None and q.grad.isfinite().all()


def test_scores_are_float32_under_autocast() -> None:
    q, k, v, s, eps = (t.float() for t in tensors())
    with torch.autocast("cpu", torch.bfloat16):
        inside = fast(q, k, v, s, eps)
    assert torch.equal(inside, fast(q, k, v, s, eps))


def test_package_scale_divides_by_the_root_of_the_head_dimension() -> None:
    torch.manual_seed(0)
    learned, package = YatAttention(12, 3).double(), YatAttention(12, 3, scale="package").double()
    package.load_state_dict(learned.state_dict())
    package.scale.alpha.data.fill_(2.0)  # √E = 2
    torch.testing.assert_close(package(draw(2, 5, 12)), learned(draw(2, 5, 12)))


def test_dropout_acts_on_the_weights_in_training_alone() -> None:
    torch.manual_seed(0)
    layer = YatAttention(12, 3, dropout=0.5).double()
    x = draw(2, 5, 12)
    assert not torch.equal(layer.train()(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 5}, "num_heads is 5; expected a divisor of embed_dim, which is 12"),
        ({"num_heads": 3, "scale": "sqrt"}, "scale is 'sqrt'; known: learned, package"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        YatAttention(12, **options)  # type: ignore[arg-type]
