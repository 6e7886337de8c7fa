"""Parts that the language models share: embeddings, GPT-2's attention, its initialisation (Radford et al. 2019).

B batch, T tokens, V vocabulary, D width, H heads, E = D / H head dimension.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.ops.yat import YatLinear


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
