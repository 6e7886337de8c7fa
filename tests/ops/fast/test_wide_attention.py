"""In bfloat16 on a CPU attention goes through float32; other types don't."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops.fast.wide_attention import use_wide_attention


@pytest.fixture(scope="module", autouse=True)
def _kept() -> Iterator[None]:
    """For these tests only."""
    before = torch.compiler.config.cache_key_tag
    library = use_wide_attention()
    assert use_wide_attention() is library and torch.compiler.config.cache_key_tag != before
    yield
    library._destroy()
    use_wide_attention.cache_clear()
    torch.compiler.config.cache_key_tag = before


def draw(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 17, 8).to(dtype).requires_grad_() for _ in range(3)]


def value_and_gradients(leaves: list[Tensor], **options: object) -> list[Tensor]:
    out = F.scaled_dot_product_attention(*leaves, **options)
    back = torch.linspace(-1, 1, out.numel()).view(out.shape).bfloat16()
    return [out, *torch.autograd.grad(out, leaves, back.to(out.dtype))]


OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "added": {"attn_mask": torch.randn(17, 17).bfloat16()},
    "kept": {"attn_mask": torch.randn(17, 17) > -1},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_bfloat16_is_that_of_float32_rounded(option: str) -> None:
    options = OPTIONS[option]
    halves = draw(torch.bfloat16)
    found = value_and_gradients(halves, **options)
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options = {"attn_mask": mask.float()}
    wanted = value_and_gradients([half.detach().float().requires_grad_() for half in halves], **options)
    assert all(got.dtype == torch.bfloat16 for got in found)
    assert all(torch.equal(got, want.bfloat16()) for got, want in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_types_are_left_to_pytorch(dtype: torch.dtype) -> None:
    leaves = draw(dtype)
    ours = value_and_gradients(leaves, is_causal=True)
    out, *_ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*leaves, is_causal=True)
    assert torch.equal(ours[0], out)


def test_a_mask_of_another_type_is_refused_as_before() -> None:
    with pytest.raises(RuntimeError, match="BFloat16"):
        F.scaled_dot_product_attention(*draw(torch.bfloat16), attn_mask=torch.zeros(17, 17, dtype=torch.float64))


def test_inference_is_left_to_pytorch() -> None:
    leaves = draw(torch.bfloat16)
    with torch.inference_mode():
        plain, *_ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*leaves)
        assert torch.equal(F.scaled_dot_product_attention(*leaves), plain)
