"""ViT, the attention baseline (NiNformer paper, eqs. 1-3 and Procedure 1; Dosovitskiy et al. 2021).

    Y(X) = Attention(LayerNorm(X)) + X     (2)
    Z(Y) = MLP(LayerNorm(Y)) + Y           (3)

As in Procedure 1, there are no positions and the head takes the mean over tokens, so the logits don't change if
patches are permuted.  B batch, C channels, S image size, N tokens, D token dimension, K classes.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from stages.papers.ninformer.layers import FeedForward, MultiHeadAttention, PatchEmbedding, TokenClassifier


class ViTBlock(nn.Module):
    """Equations 2 and 3.  [B, N, D] -> [B, N, D]."""

    def __init__(self, *, dim: int, num_heads: int, mlp_dim: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = MultiHeadAttention(dim=dim, num_heads=num_heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = FeedForward(dim=dim, hidden_dim=mlp_dim, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(self.attention_norm(x)) + x
        return self.mlp(self.mlp_norm(y)) + y


class ViT(TokenClassifier):
    """Procedure 1.  Normalised images [B, C, S, S] -> logits [B, K]."""

    embedding_class: ClassVar[type[PatchEmbedding]] = PatchEmbedding

    def __init__(
        self,
        *,
        image_size: int,
        in_channels: int,
        num_classes: int,
        patch_size: int,
        dim: int,
        depth: int,
        num_heads: int,
        mlp_dim: int,
        dropout: float,
    ) -> None:
        embedding = self.embedding_class(image_size=image_size, in_channels=in_channels, dim=dim, patch_size=patch_size)
        blocks = [ViTBlock(dim=dim, num_heads=num_heads, mlp_dim=mlp_dim, dropout=dropout) for _ in range(depth)]
        super().__init__(embedding, blocks, dim=dim, num_classes=num_classes)


class PositionedPatchEmbedding(PatchEmbedding):
    """Patch embedding plus a learned vector for each position.  [B, C, S, S] -> [B, N, D].

    Dosovitskiy et al. 2021 (eq. 1) add it; as in their code, its standard deviation is 0.02 at first.
    """

    def __init__(self, *, image_size: int, in_channels: int, dim: int, patch_size: int) -> None:
        super().__init__(image_size=image_size, in_channels=in_channels, dim=dim, patch_size=patch_size)
        self.positions = nn.Parameter(torch.empty(self.num_tokens, dim))
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + self.positions


class PositionedViT(ViT):
    """`ViT` whose patch embedding includes positions: a sensitivity arm, because `ViT` ignores the patches' order."""

    embedding_class = PositionedPatchEmbedding
