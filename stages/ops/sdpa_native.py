"""PyTorch's attention in bfloat16 on a CPU, by way of float32: its own backward pass there takes four times as long."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def keep_attention_in_float32() -> torch.library.Library:
    """From now on `scaled_dot_product_attention` widens bfloat16 on a CPU and rounds what comes out, for good.

    In inference mode it goes by PyTorch's own way, which is as fast there.
    """
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
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
