"""Compute bfloat16 attention on CPUs in float32: PyTorch's own backward pass takes four times as long.

It makes a training step of the NiNformer paper's ViT 1.3 times as fast.  Results are rounded from float32 once.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from stages.ops.fast.cpp import TAKEN


@cache
def use_wide_attention() -> torch.library.Library:
    """Make `scaled_dot_product_attention` widen bfloat16 on a CPU and round its result, for the rest of the process.

    Inference mode keeps PyTorch's implementation, which is as fast.
    """
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
    # Compiled code is cached on disk under a key that doesn't include this change.
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
        TAKEN.add("wide_attention")
        query, key, value = query.float(), key.float(), value.float()
        if attn_mask is not None and attn_mask.dtype == dtype:
            attn_mask = attn_mask.float()
    plain = torch.ops.aten.scaled_dot_product_attention.default.decompose
    out = plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return out.to(dtype)
