"""MLP-Mixer, a baseline and NiNformer's inner sub-unit (NiNformer paper, eqs. 4-5, Procedure 2; Tolstikhin et al.).

    Y(X) = Transpose(MLP(Transpose(LayerNorm(X)))) + X     (4)
    Z(Y) = MLP(LayerNorm(Y)) + Y                           (5)

B batch, C channels, S image size, N tokens, D token dimension, K classes.
"""

from __future__ import annotations

from torch import Tensor, nn

from stages.papers.ninformer.layers import FeedForward, PatchEmbedding, count_patches


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


class MLPMixer(nn.Module):
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
        super().__init__()
        num_tokens = count_patches(image_size, patch_size)
        self.patch_embedding = PatchEmbedding(in_channels=in_channels, dim=dim, patch_size=patch_size)
        self.blocks = nn.Sequential(
            *(
                MixerBlock(
                    num_tokens=num_tokens, dim=dim, token_dim=token_dim, channel_dim=channel_dim, dropout=dropout
                )
                for _ in range(depth)
            )
        )
        self.head = nn.Linear(dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.blocks(self.patch_embedding(images))
        return self.head(tokens.mean(dim=1))
