"""AetherGPT, the proposed language model, as the guide describes it (NMN architecture guide, section AetherGPT).

    y = Yat-attention(x) + x
    z = Linear(Yat(y)) + y

No LayerNorm, no activation; everything else is as in GPT-2, so the pair differs only in this.  The Yat layer
has no bias, as in all of the authors' code.  B batch, T tokens, V vocabulary, D width.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from stages.ops.yat import ScaleReading, YatLinear
from stages.ops.yat_attention import YatAttention
from stages.papers.nmn.layers import CausalAttention, TextEmbedding, initialise


class YatFeedForward(nn.Module):
    """Yat layer to four times the width, then a Linear back.  [B, T, D] -> [B, T, D]."""

    def __init__(self, *, width: int, scale: ScaleReading, epsilon: float, has_bias: bool = True) -> None:
        super().__init__()
        self.expand = YatLinear(width, 4 * width, bias=False, scale=scale, epsilon=epsilon)
        self.contract = nn.Linear(4 * width, width, bias=has_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(self.expand(x))


class CausalYatAttention(YatAttention):
    """Yat attention over earlier tokens, with the guide's learned scale.  [B, T, D] -> [B, T, D]."""

    def __init__(self, *, width: int, num_heads: int, dropout: float, epsilon: float) -> None:
        super().__init__(width, num_heads, dropout, epsilon=epsilon)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = True) -> Tensor:
        return super().forward(x, attn_mask, is_causal)


class AetherGPTBlock(nn.Module):
    """[B, T, D] -> [B, T, D]."""

    def __init__(self, *, attention: nn.Module, mlp: nn.Module, dropout: float) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.attention(x)) + x
        return self.dropout(self.mlp(y)) + y


class AetherGPT(nn.Module):
    """Tokens int64 [B, T] -> logits of each next token [B, T, V].

    `attention` is the guide's ("yat") or GPT-2's ("dot"), an ablation.  `scale` and `epsilon` are those of the Yat
    layers; Yat attention shares the epsilon and learns its own scale.

    Raises:
        ValueError: the attention is unknown, or the heads don't divide the width.
    """

    def __init__(
        self,
        *,
        vocabulary_size: int,
        context: int,
        width: int,
        depth: int,
        num_heads: int,
        dropout: float,
        attention: Literal["yat", "dot"],
        scale: ScaleReading,
        epsilon: float,
    ) -> None:
        super().__init__()
        self.embedding = TextEmbedding(vocabulary_size=vocabulary_size, context=context, width=width, dropout=dropout)

        def attend() -> nn.Module:
            if attention == "yat":
                return CausalYatAttention(width=width, num_heads=num_heads, dropout=dropout, epsilon=epsilon)
            if attention == "dot":
                return CausalAttention(width=width, num_heads=num_heads, dropout=dropout)
            raise ValueError(f"attention is {attention!r}; known: yat, dot")

        self.blocks = nn.Sequential(
            *(
                AetherGPTBlock(
                    attention=attend(),
                    mlp=YatFeedForward(width=width, scale=scale, epsilon=epsilon),
                    dropout=dropout,
                )
                for _ in range(depth)
            )
        )
        initialise(self, depth)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.blocks(self.embedding(tokens)), self.embedding.tokens.weight)
