"""On a CPU, bfloat16 attention is computed in float32; other types are unchanged."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops.fast.wide_attention import use_wide_attention
from tests.ops.gradients import as_leaves, leaves, value_and_gradients


@pytest.fixture(scope="module", autouse=True)
def _kept() -> Iterator[None]:
    """Register the override for these tests only."""
    before = torch.compiler.config.cache_key_tag
    library = use_wide_attention()
    assert use_wide_attention() is library and torch.compiler.config.cache_key_tag != before
    yield
    library._destroy()
    use_wide_attention.cache_clear()
    torch.compiler.config.cache_key_tag = before


def draw(dtype: torch.dtype) -> list[Tensor]:
    return leaves(*[(2, 3, 17, 8)] * 3, dtype=dtype)


def attended(tensors: list[Tensor], **options: object) -> list[Tensor]:
    upstream = torch.linspace(-1, 1, 2 * 3 * 17 * 8).view(2, 3, 17, 8).bfloat16()
    return value_and_gradients(partial(F.scaled_dot_product_attention, **options), tensors, upstream)


OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "added": {"attn_mask": torch.randn(17, 17).bfloat16()},
    "kept": {"attn_mask": torch.randn(17, 17) > -1},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_bfloat16_attention_equals_rounded_float32(option: str) -> None:
    options = OPTIONS[option]
    halves = draw(torch.bfloat16)
    found = attended(halves, **options)
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options = {"attn_mask": mask.float()}
    wanted = attended(as_leaves(halves, torch.float32), **options)
    assert all(got.dtype == torch.bfloat16 for got in found)
    assert all(torch.equal(got, want.bfloat16()) for got, want in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_types_are_left_to_pytorch(dtype: torch.dtype) -> None:
    tensors = draw(dtype)
    ours = attended(tensors, is_causal=True)
    out, *_ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*tensors, is_causal=True)
    assert torch.equal(ours[0], out)


def test_mask_of_another_type_is_still_refused() -> None:
    with pytest.raises(RuntimeError, match="BFloat16"):
        F.scaled_dot_product_attention(*draw(torch.bfloat16), attn_mask=torch.zeros(17, 17, dtype=torch.float64))


def test_inference_is_left_to_pytorch() -> None:
    tensors = draw(torch.bfloat16)
    with torch.inference_mode():
        plain, *_ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*tensors)
        assert torch.equal(F.scaled_dot_product_attention(*tensors), plain)
