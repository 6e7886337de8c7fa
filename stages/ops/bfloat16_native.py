"""Backward passes that PyTorch is slow at in bfloat16 on a CPU: attention's goes by way of float32, since PyTorch's own
takes four times as long, and GELU's by a table (`bfloat16_native.cpp`), in half of the time.

The table holds what PyTorch computes for full registers, so the numbers are PyTorch's; the last few of a tensor, which
fill no register, PyTorch makes by another routine, and far from zero rounds some otherwise.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from stages.ops.native import call, in_parts, load_library

_SOURCE = Path(__file__).with_suffix(".cpp")
_PART = 1 << 15


@cache
def use_fast_bfloat16() -> torch.library.Library:
    """From now on, and for good, `scaled_dot_product_attention` widens bfloat16 on a CPU and rounds what comes out, and
    GELU's gradient there is looked up where C++ can be compiled.

    In inference mode attention goes by PyTorch's own way, which is as fast there.
    """
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
    if sys.byteorder == "little" and load_library(_SOURCE) is not None:
        library.impl("gelu_backward", _gelu_backward, "CPU", allow_override=True)
    # Compiled code is kept on disk under a key that doesn't know of this.
    torch.compiler.config.cache_key_tag += "attention in float32"
    return library


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    dtype = query.dtype
    is_known_mask = attn_mask is None or attn_mask.dtype in (torch.bool, torch.bfloat16)
    if dtype == torch.bfloat16 and key.dtype == value.dtype == dtype and is_known_mask:
        query, key, value = query.float(), key.float(), value.float()
        if attn_mask is not None and attn_mask.dtype == dtype:
            attn_mask = attn_mask.float()
    plain = torch.ops.aten.scaled_dot_product_attention.default.decompose
    out = plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return out.to(dtype)


def _gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    is_known = all(tensor.dtype == torch.bfloat16 and tensor.is_contiguous() for tensor in (grad, x))
    if not is_known or grad.shape != x.shape or not x.numel():
        return _plain_gelu_backward(grad, x, approximate)
    to_x, slopes, count = torch.empty_like(x), _slopes_of_gelu(approximate), x.numel()

    def work(parts: slice) -> None:
        call(_SOURCE, "gelu_backward", grad, x, slopes, to_x, parts.start * _PART, min(parts.stop * _PART, count))

    in_parts(-(-count // _PART), work)
    return to_x


def _plain_gelu_backward(grad: Tensor, x: Tensor, approximate: str) -> Tensor:
    """PyTorch's, by the form of the operator that stays as it is; it gives an empty tensor its shape and strides."""
    to_x = torch.empty(0, dtype=torch.result_type(grad, x), device="cpu")
    return torch.ops.aten.gelu_backward.grad_input(grad, x, approximate=approximate, grad_input=to_x)


@cache
def _slopes_of_gelu(approximate: str) -> Tensor:
    """In float32, [65536], in the order of the numbers' bits: what PyTorch multiplies gradients with, on its way."""
    bits = torch.arange(1 << 16, dtype=torch.int32, device="cpu").to(torch.int16)
    x = bits.view(torch.bfloat16).float()
    return _plain_gelu_backward(torch.ones_like(x), x, approximate)
