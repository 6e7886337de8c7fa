"""Yat attention                                                            (NMN architecture guide; numbers are ours).

    Yat-Attention(Q, K, V) = softmax(s · (Q ⵟ K)) V,    (Q ⵟ K)_ij = (q_i·k_j)² / (‖q_i − k_j‖² + ε)      (6)
    the released package:    s = α / √E,  α learned, from 1                                                (7)
    its spherical option:    q / √(‖q‖² + ε) for q, the same for k, and 2 − 2 q·k for the distance         (8)

B samples, H heads, T queries, S keys, E features of a head, D = H·E.  Scores, softmax and distances are at least
float32; PyTorch's operators round the weights to the values' dtype before they multiply.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.ops.fast import attention
from stages.ops.precision import widen, without_autocast
from stages.ops.yat import Factor, YatEpsilon, YatScale, yat_ratio

# s is learned, starting at 1 (the guide), or given by equation 7.
AttentionScale = Literal["learned", "package"]


def yat_attention_reference(q: Tensor, k: Tensor, v: Tensor, s: Factor, eps: Factor) -> Tensor:
    """Equation 6 as printed.  q: [..., T, E]; k: [..., S, E]; v: [..., S, E']; returns [..., T, E']."""
    q, k = q.unsqueeze(-2), k.unsqueeze(-3)
    scores = (q * k).sum(-1).square() / ((q - k).square().sum(-1) + eps)
    return (s * scores).softmax(dim=-1) @ v


def yat_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Factor = 1.0,
    epsilon: Factor = 1e-5,
    is_spherical: bool = False,
) -> Tensor:
    """Equation 6 with the reused dot product; shapes and masks of `F.scaled_dot_product_attention`.

    `attn_mask` is boolean, True if a query may see a key; with `is_causal`, query i sees no key after i either.
    A query that sees no key returns zeros.
    """
    with without_autocast(query.device):
        if attn_mask is None and dropout_p == 0 and not is_spherical:
            fast = attention.attention(query, key, value, scale, epsilon, is_causal=is_causal)
            if fast is not None:
                return fast
        weights = _attention_weights(query, key, attn_mask, is_causal, scale, epsilon, is_spherical)
        if dropout_p > 0:
            weights = F.dropout(weights, dropout_p)
        return (weights.to(value.dtype) @ value).to(query.dtype)


def _attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: Factor,
    epsilon: Factor,
    is_spherical: bool,
) -> Tensor:
    """Attention weights [..., T, S], at least float32; rows sum to 1, or to 0 if no key is seen."""
    query, key, _ = widen(query, key, None)
    if is_spherical:
        query, key = (x * (x.square().sum(-1, keepdim=True) + epsilon).rsqrt() for x in (query, key))
        squared_norms = torch.full((), 2.0, device=query.device, dtype=query.dtype)  # as printed: nearly unit vectors
    else:
        squared_norms = query.square().sum(-1).unsqueeze(-1) + key.square().sum(-1).unsqueeze(-2)
    scores = yat_ratio(query @ key.mT, squared_norms, scale, epsilon)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        attn_mask = seen if attn_mask is None else attn_mask & seen
    if attn_mask is None:
        return scores.softmax(dim=-1)
    # The lowest finite number, because -inf would make rows without a key NaN before they are zeroed.
    scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1).masked_fill(~attn_mask, 0)


class YatAttention(nn.Module):
    """Multi-head self-attention with equation 6 in each head.  [B, T, D] -> [B, T, D].

    `dropout` acts on the attention weights in training.  Linear maps start as those of `nn.Linear`.

    Raises:
        ValueError: the heads don't divide `embed_dim`, or the scale is unknown.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        scale: AttentionScale = "learned",
        epsilon: float = 1e-5,
        learnable_epsilon: bool = False,
        is_spherical: bool = False,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"num_heads is {num_heads}; expected a divisor of embed_dim, which is {embed_dim}")
        divisors = {"learned": 1.0, "package": math.sqrt(embed_dim // num_heads)}
        if scale not in divisors:
            raise ValueError(f"scale is {scale!r}; known: {', '.join(divisors)}")
        self.num_heads, self.dropout, self.is_spherical = num_heads, dropout, is_spherical
        self.divisor = divisors[scale]
        self.scale = YatScale(num_heads, "multiplier", device, dtype)
        self.epsilon = YatEpsilon(epsilon, learnable_epsilon, device, dtype)
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias, device, dtype)
        self.projection = nn.Linear(embed_dim, embed_dim, bias, device, dtype)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # each [B, H, T, E]
        mixed = yat_attention(
            q,
            k,
            v,
            attn_mask,
            self.dropout if self.training else 0.0,
            is_causal,
            scale=self.scale() / self.divisor,
            epsilon=self.epsilon(),
            is_spherical=self.is_spherical,
        )
        return self.projection(mixed.transpose(1, 2).flatten(2))
