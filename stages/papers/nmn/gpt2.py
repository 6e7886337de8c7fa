"""GPT-2, the baseline language model (Radford et al. 2019): LayerNorm before each half of a block, and at the end.

    y = attention(LayerNorm(x)) + x
    z = Linear(GELU(Linear(LayerNorm(y)))) + y

The logits' matrix is the token embedding.  "Small" is width 768, depth 12, 12 heads, context 1024.
B batch, T tokens, V vocabulary, D width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from stages.papers.nmn.layers import CausalAttention, TextEmbedding, initialise


class GPT2FeedForward(nn.Module):
    """Linear - GELU - Linear; GELU in the tanh form of GPT-2's authors.  [B, T, D] -> [B, T, D]."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(F.gelu(self.expand(x), approximate="tanh"))


class GPT2Block(nn.Module):
    """[B, T, D] -> [B, T, D]."""

    def __init__(self, *, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalAttention(width=width, num_heads=num_heads, dropout=dropout)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = GPT2FeedForward(width=width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.attention(self.attention_norm(x))) + x
        return self.dropout(self.mlp(self.mlp_norm(y))) + y


class GPT2(nn.Module):
    """Tokens int64 [B, T] -> logits of each next token [B, T, V]."""

    def __init__(
        self, *, vocabulary_size: int, context: int, width: int, depth: int, num_heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = TextEmbedding(vocabulary_size=vocabulary_size, context=context, width=width, dropout=dropout)
        self.blocks = nn.Sequential(
            *(GPT2Block(width=width, num_heads=num_heads, dropout=dropout) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(width)
        initialise(self, depth)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.blocks(self.embedding(tokens)))
        return F.linear(hidden, self.embedding.tokens.weight)
