"""The language models: GPT-2, the guide's AetherGPT, and the pair of the authors' public code, YatGPT and PostNormGPT.

    GPT2:         y = attention(LayerNorm(x)) + x,  z = Linear(GELU(Linear(LayerNorm(y)))) + y
    AetherGPT:    y = Yat-attention(x) + x,         z = Linear(Yat(y)) + y
    YatGPT:       y = attention(x) + x,             z = Linear(Yat(y)) + y
    PostNormGPT:  y = LayerNorm(attention(x) + x),  z = LayerNorm(Linear(ReLU(Linear(y))) + y)

GPT-2 (Radford et al. 2019) is the baseline; "small" is width 768, depth 12, 12 heads, context 1024.  AetherGPT (NMN
architecture guide, section AetherGPT) has no LayerNorm and no activation, and differs from GPT-2 only in this; its Yat
layer has no bias, as in all of the authors' code.

The authors' code trains the other pair on FineWeb: the logits' matrix is a separate Linear with a bias instead of the
token embedding, and the Linear after YatGPT's Yat layer has none.  PostNormGPT's hidden width is D and YatGPT's 4 D, so
the pair isn't matched.  The authors' YatGPT also makes LayerNorms that it never applies; we leave them out.

B batch, T tokens, V vocabulary, D width, H heads, E = D / H head dimension.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.ops.yat import ScaleReading, YatAttention, YatLinear


class TextEmbedding(nn.Module):
    """Token plus learned position, then dropout.  int64 [B, T] -> [B, T, D].

    Raises:
        ValueError: more tokens than `context` has positions.
    """

    def __init__(self, *, vocabulary_size: int, context: int, width: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        length, context = tokens.shape[1], self.positions.num_embeddings
        if length > context:
            raise ValueError(f"{length} tokens; expected at most context, which is {context}")
        places = torch.arange(length, device=tokens.device)
        return self.dropout(self.tokens(tokens) + self.positions(places))


class CausalAttention(nn.Module):
    """softmax(QKᵀ / √E) V over earlier tokens, in H heads, then a Linear.  [B, T, D] -> [B, T, D].

    Raises:
        ValueError: the heads don't divide `width`.
    """

    def __init__(self, *, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        if num_heads < 1 or width % num_heads:
            raise ValueError(f"num_heads is {num_heads}; expected a divisor of width, which is {width}")
        self.num_heads, self.dropout = num_heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # each [B, H, T, E]
        mixed = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        return self.projection(mixed.transpose(1, 2).flatten(2))


def initialise(model: nn.Module, depth: int) -> None:
    """Apply GPT-2's initialisation: biases 0, deviation 0.02, over √(2 depth) in layers that write to the residual.

    Those are the Linear layers named `projection` or `contract`, two per block.  Yat layers keep their own.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not isinstance(module, YatLinear):
            writes = name.endswith(("projection", "contract"))
            nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * depth) if writes else 0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)


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
