"""YatGPT and its baseline PostNormGPT: the pair that the authors' public code trains on FineWeb, as it runs.

    YatGPT:       y = attention(x) + x,             z = Linear(Yat(y)) + y
    PostNormGPT:  y = LayerNorm(attention(x) + x),  z = LayerNorm(Linear(ReLU(Linear(y))) + y)

Unlike the guide's AetherGPT: attention is GPT-2's, the logits' matrix is a separate Linear with a bias, and the
Linear after the Yat layer has none.  The baseline's hidden width is D and YatGPT's 4 D, so the pair isn't matched.
The authors' YatGPT also makes LayerNorms that it never applies; we leave them out.
B batch, T tokens, V vocabulary, D width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from stages.ops.yat import ScaleReading
from stages.papers.nmn.aether_gpt import AetherGPTBlock, YatFeedForward
from stages.papers.nmn.layers import CausalAttention, TextEmbedding, initialise


class YatGPT(nn.Module):
    """Tokens int64 [B, T] -> logits of each next token [B, T, V]."""

    def __init__(
        self,
        *,
        vocabulary_size: int,
        context: int,
        width: int,
        depth: int,
        num_heads: int,
        dropout: float,
        scale: ScaleReading,
        epsilon: float,
    ) -> None:
        super().__init__()
        self.embedding = TextEmbedding(vocabulary_size=vocabulary_size, context=context, width=width, dropout=dropout)
        self.blocks = nn.Sequential(
            *(
                AetherGPTBlock(
                    attention=CausalAttention(width=width, num_heads=num_heads, dropout=dropout),
                    mlp=YatFeedForward(width=width, scale=scale, epsilon=epsilon, has_bias=False),
                    dropout=dropout,
                )
                for _ in range(depth)
            )
        )
        self.head = nn.Linear(width, vocabulary_size)
        initialise(self, depth)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


class NarrowFeedForward(nn.Module):
    """Linear - ReLU - Linear at the width of the model.  [B, T, D] -> [B, T, D]."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.expand = nn.Linear(width, width)
        self.contract = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(F.relu(self.expand(x)))


class PostNormBlock(nn.Module):
    """[B, T, D] -> [B, T, D]."""

    def __init__(self, *, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = CausalAttention(width=width, num_heads=num_heads, dropout=dropout)
        self.attention_norm = nn.LayerNorm(width)
        self.mlp = NarrowFeedForward(width=width)
        self.mlp_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention_norm(self.dropout(self.attention(x)) + x)
        return self.mlp_norm(self.dropout(self.mlp(y)) + y)


class PostNormGPT(nn.Module):
    """Tokens int64 [B, T] -> logits of each next token [B, T, V]."""

    def __init__(
        self, *, vocabulary_size: int, context: int, width: int, depth: int, num_heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = TextEmbedding(vocabulary_size=vocabulary_size, context=context, width=width, dropout=dropout)
        self.blocks = nn.Sequential(
            *(PostNormBlock(width=width, num_heads=num_heads, dropout=dropout) for _ in range(depth))
        )
        self.head = nn.Linear(width, vocabulary_size)
        initialise(self, depth)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(tokens)))
