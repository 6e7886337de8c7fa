"""LocalViT, the baseline with convolutions (NiNformer paper, eqs. 6-7 and Procedure 3; Li et al. 2021).

    Y(X) = Attention(LayerNorm(X)) + X     (6)
    Z(Y) = CONV(LayerNorm(Y)) + Y          (7)

CONV is the locality feed-forward of LocalViT's authors with h-swish and without squeeze-and-excitation.  Theirs adds
its own residual and has no LayerNorm before it; equation 7 has both outside, so there is no inner residual here.
B batch, C channels, S image size, N tokens, G = √N grid size, D token dimension, K classes.
"""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor, nn

from stages.papers.ninformer.layers import MultiHeadAttention, PatchEmbedding, TokenClassifier


class LocalFeedForward(nn.Module):
    """CONV(x) of eq. 7: 1x1, depthwise 3x3 and 1x1 convolution over the tokens' grid.  [B, N, D] -> [B, N, D].

    Convolutions have no bias, because BatchNorm follows each.  LocalViT's authors use no dropout here; ours follows
    only the last BatchNorm, because dropout before BatchNorm makes its variances differ between training and
    evaluation (Li et al. 2019, "Understanding the disharmony between dropout and batch normalization").
    """

    def __init__(self, *, dim: int, channels: int, dropout: float) -> None:
        super().__init__()
        self.expand = nn.Sequential(
            nn.Conv2d(dim, channels, kernel_size=1, bias=False), nn.BatchNorm2d(channels), nn.Hardswish()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(channels, channels, kernel_size=3, padding=1, groups=channels, bias=False),
            nn.BatchNorm2d(channels),
            nn.Hardswish(),
        )
        self.contract = nn.Sequential(nn.Conv2d(channels, dim, kernel_size=1, bias=False), nn.BatchNorm2d(dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        grid_size = math.isqrt(x.shape[1])
        grid = x.transpose(1, 2).unflatten(2, (grid_size, grid_size))  # [B, D, G, G]
        grid = self.contract(self.depthwise(self.expand(grid)))
        return self.dropout(grid.flatten(2).transpose(1, 2))


class LocalViTBlock(nn.Module):
    """Equations 6 and 7, with a `conv_class` for CONV.  [B, N, D] -> [B, N, D]."""

    def __init__(self, *, dim: int, num_heads: int, channels: int, dropout: float, conv_class: type[nn.Module]) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = MultiHeadAttention(dim=dim, num_heads=num_heads)
        self.conv_norm = nn.LayerNorm(dim)
        self.conv = conv_class(dim=dim, channels=channels, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(self.attention_norm(x)) + x
        return self.conv(self.conv_norm(y)) + y


class LocalViT(TokenClassifier):
    """Procedure 3.  Normalised images [B, C, S, S] -> logits [B, K]."""

    conv_class: ClassVar[type[nn.Module]] = LocalFeedForward

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
        channels: int,
        dropout: float,
    ) -> None:
        embedding = PatchEmbedding(image_size=image_size, in_channels=in_channels, dim=dim, patch_size=patch_size)
        blocks = [
            LocalViTBlock(dim=dim, num_heads=num_heads, channels=channels, dropout=dropout, conv_class=self.conv_class)
            for _ in range(depth)
        ]
        super().__init__(embedding, blocks, dim=dim, num_classes=num_classes)


REDUCTION = 4  # LocalViT's authors


class SqueezeExcitation(nn.Module):
    """Multiply x by a factor for each sample and channel (Hu et al. 2018).  [B, C, G, G] -> [B, C, G, G].

    s = h-sigmoid(W₂ ReLU(W₁ mean(x) + b₁) + b₂),    mean over the grid, W₁: [C/4, C], W₂: [C, C/4]
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // REDUCTION)
        self.excite = nn.Linear(channels // REDUCTION, channels)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.squeeze(x.mean(dim=(2, 3))).relu()
        factors = nn.functional.hardsigmoid(self.excite(hidden))
        return x * factors[:, :, None, None]


class SqueezeExciteFeedForward(LocalFeedForward):
    """`LocalFeedForward` with squeeze-and-excitation after the depthwise convolution.  [B, N, D] -> [B, N, D]."""

    def __init__(self, *, dim: int, channels: int, dropout: float) -> None:
        super().__init__(dim=dim, channels=channels, dropout=dropout)
        self.depthwise.append(SqueezeExcitation(channels))


class SqueezeExciteLocalViT(LocalViT):
    """`LocalViT` with `SqueezeExciteFeedForward` for CONV, a variant of its authors (Li et al. 2021)."""

    conv_class = SqueezeExciteFeedForward
