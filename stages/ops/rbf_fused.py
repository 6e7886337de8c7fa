"""Gaussian HyperBF attention without a map of scores: in C++, or by PyTorch's fused attention.

Terms of the query alone cancel in the normalisation, so -β‖q - k‖² becomes s (2 q·k - ‖k‖²) with s = β, the inner
product of (2βq, 1) and (k, -β‖k‖²).  Symbols as in `stages.ops.rbf`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops.fast import attention
from stages.ops.rbf_distance import factored, terms


def gaussian_attention(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | float, metric_factor: Tensor | None, metric: Tensor | None
) -> Tensor:
    """Equation 6 in the dtype of q.  q: [..., N, E]; k: [..., T, E]; v: [..., T, F]; returns [..., N, F]."""
    # The norm is taken of the rounded key, so that the score is the exact distance of rounded vectors.
    q, k = factored(q, metric_factor), factored(k, metric_factor)
    q_metric, k_norm = q, None  # None: the squared norm, which the fast path computes itself
    if metric is not None:
        q_metric, _, k_norm = terms(q, k, metric)
    fast = attention.attention(q_metric, k, v, beta, None, key_terms=k_norm)
    if fast is not None:
        return fast
    if k_norm is None:
        q_metric, _, k_norm = terms(q, k, None)
    columns = _split(-beta * k_norm, k.dtype)
    # Fused kernels need the same width for query, key and value, a multiple of 8; the query's padding holds the ones.
    width = max(k.shape[-1] + columns.shape[-1], v.shape[-1])
    width += -width % 8
    query = F.pad((2 * beta * q_metric).to(q.dtype), (0, width - q.shape[-1]), value=1.0)
    zeros = k.new_zeros(*k.shape[:-1], width - k.shape[-1] - columns.shape[-1])
    key = torch.cat([k, columns, zeros], dim=-1)
    value = F.pad(v, (0, width - v.shape[-1]))
    return F.scaled_dot_product_attention(query, key, value, scale=1.0)[..., : v.shape[-1]]


def _split(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Split x into columns of `dtype` with sum x: one if `dtype` holds all digits, else two.  [...] -> [..., C]."""
    leading = x.to(dtype)
    if dtype == x.dtype:
        return leading[..., None]
    return torch.stack([leading, (x - leading).to(dtype)], dim=-1)
