"""NiNformer, the proposed architecture (NiNformer paper, eqs. 8-10 and Procedure 4).

    Gating(I) = MLPMixer(I) * Linear(I)    (8)   elementwise, no squashing
    Y(X) = Gating(LayerNorm(X)) + X        (9)
    Z(Y) = MLP(LayerNorm(Y)) + Y           (10)

MLPMixer in eq. 8 is one block of eqs. 4-5 with its own residuals and LayerNorms.  The LayerNorms of eqs. 9 and 10 are
two modules here; the authors' code uses one for both (`SharedNormNiNformer`).  B batch, C channels, S image size,
N tokens, D token dimension, K classes.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from stages.papers.ninformer.layers import FeedForward, PatchEmbedding, TokenClassifier
from stages.papers.ninformer.mlp_mixer import MixerBlock


class GatingUnit(nn.Module):
    """Equation 8: the inner network's output gates a linear map of its input.  [B, N, D] -> [B, N, D]."""

    def __init__(self, *, num_tokens: int, dim: int, token_dim: int, channel_dim: int, dropout: float) -> None:
        super().__init__()
        self.mixer = MixerBlock(
            num_tokens=num_tokens, dim=dim, token_dim=token_dim, channel_dim=channel_dim, dropout=dropout
        )
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.mixer(x) * self.linear(x)


class NiNformerBlock(nn.Module):
    """Equations 9 and 10.  [B, N, D] -> [B, N, D]."""

    def __init__(
        self, *, num_tokens: int, dim: int, mlp_dim: int, token_dim: int, channel_dim: int, dropout: float
    ) -> None:
        super().__init__()
        self.gating_norm = nn.LayerNorm(dim)
        self.gating = GatingUnit(
            num_tokens=num_tokens, dim=dim, token_dim=token_dim, channel_dim=channel_dim, dropout=dropout
        )
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = FeedForward(dim=dim, hidden_dim=mlp_dim, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.gating(self.gating_norm(x)) + x
        return self.mlp(self.mlp_norm(y)) + y


class NiNformer(TokenClassifier):
    """Procedure 4.  Normalised images [B, C, S, S] -> logits [B, K]."""

    block_class: ClassVar[type[nn.Module]] = NiNformerBlock

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
            self.block_class(
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


class SharedNormNiNformer(NiNformer):
    """`NiNformer` as the authors' code runs it: equations 9 and 10 share one LayerNorm, so one scale and one shift."""

    block_class = SharedNormBlock
