"""MLP-Mixer, a baseline and also NiNformer's inner sub-unit (NiNformer paper, eqs. 4-5, Procedure 2; Tolstikhin et
al.).

    Y(X) = Transpose(MLP(Transpose(LayerNorm(X)))) + X     (4)
    Z(Y) = MLP(LayerNorm(Y)) + Y                           (5)

B batch, C channels, S image size, N tokens, D token dimension, K classes.
"""

from __future__ import annotations

from torch import Tensor, nn

from stages.papers.ninformer.layers import FeedForward, PatchEmbedding, TokenClassifier


class MixerBlock(nn.Module):
    """Equations 4 and 5: an MLP across tokens, then one across channels.  [B, N, D] -> [B, N, D]."""

    def __init__(self, *, num_tokens: int, dim: int, token_dim: int, channel_dim: int, dropout: float) -> None:
        super().__init__()
        self.token_norm = nn.LayerNorm(dim)
        self.token_mlp = FeedForward(dim=num_tokens, hidden_dim=token_dim, dropout=dropout)
        self.channel_norm = nn.LayerNorm(dim)
        self.channel_mlp = FeedForward(dim=dim, hidden_dim=channel_dim, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.token_mlp(self.token_norm(x).transpose(1, 2)).transpose(1, 2) + x
        return self.channel_mlp(self.channel_norm(y)) + y


class MLPMixer(TokenClassifier):
    """Procedure 2.  Normalised images [B, C, S, S] -> logits [B, K]."""

    def __init__(
        self,
        *,
        image_size: int,
        in_channels: int,
        num_classes: int,
        patch_size: int,
        dim: int,
        depth: int,
        token_dim: int,
        channel_dim: int,
        dropout: float,
    ) -> None:
        embedding = PatchEmbedding(image_size=image_size, in_channels=in_channels, dim=dim, patch_size=patch_size)
        blocks = [
            MixerBlock(
                num_tokens=embedding.num_tokens,
                dim=dim,
                token_dim=token_dim,
                channel_dim=channel_dim,
                dropout=dropout,
            )
            for _ in range(depth)
        ]
        super().__init__(embedding, blocks, dim=dim, num_classes=num_classes)
