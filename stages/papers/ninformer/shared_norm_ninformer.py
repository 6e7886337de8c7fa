"""NiNformer as the authors' code runs it: equations 9 and 10 use one LayerNorm module, so one scale and one shift.

    Y(X) = Gating(LayerNorm(X)) + X        (9)
    Z(Y) = MLP(LayerNorm(Y)) + Y           (10)

B batch, N tokens, D token dimension.
"""

from __future__ import annotations

from torch import Tensor, nn

from stages.papers.ninformer.layers import FeedForward, PatchEmbedding, TokenClassifier
from stages.papers.ninformer.ninformer import GatingUnit


class SharedNormBlock(nn.Module):
    """Equations 9 and 10 with the same LayerNorm.  [B, N, D] -> [B, N, D]."""

    def __init__(
        self, *, num_tokens: int, dim: int, mlp_dim: int, token_dim: int, channel_dim: int, dropout: float
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.gating = GatingUnit(
            num_tokens=num_tokens, dim=dim, token_dim=token_dim, channel_dim=channel_dim, dropout=dropout
        )
        self.mlp = FeedForward(dim=dim, hidden_dim=mlp_dim, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.gating(self.norm(x)) + x
        return self.mlp(self.norm(y)) + y


class SharedNormNiNformer(TokenClassifier):
    """`NiNformer` of `SharedNormBlock`s."""

    def __init__(
        self,
        *,
        image_size: int,
        in_channels: int,
        num_classes: int,
        patch_size: int,
        dim: int,
        depth: int,
        mlp_dim: int,
        token_dim: int,
        channel_dim: int,
        dropout: float,
    ) -> None:
        embedding = PatchEmbedding(image_size=image_size, in_channels=in_channels, dim=dim, patch_size=patch_size)
        blocks = [
            SharedNormBlock(
                num_tokens=embedding.num_tokens,
                dim=dim,
                mlp_dim=mlp_dim,
                token_dim=token_dim,
                channel_dim=channel_dim,
                dropout=dropout,
            )
            for _ in range(depth)
        ]
        super().__init__(embedding, blocks, dim=dim, num_classes=num_classes)
