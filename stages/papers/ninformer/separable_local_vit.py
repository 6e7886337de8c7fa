"""LocalViT as in other public code: a depthwise separable convolution, with a bias everywhere and no BatchNorm.

CONV of equation 7 becomes 1x1, h-swish, depthwise 3x3, 1x1, h-swish, Dropout, 1x1, Dropout.  The paper doesn't say
which CONV it ran; of the three here, this one has the most parameters.
B batch, N tokens, G = √N grid size, D token dimension.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from stages.papers.ninformer.local_vit import LocalViT


class SeparableFeedForward(nn.Module):
    """CONV(x) of eq. 7 with a depthwise separable convolution.  [B, N, D] -> [B, N, D].

    Dropout is placed as in the MLP, because there are no BatchNorm statistics that it could disturb.
    """

    def __init__(self, *, dim: int, channels: int, dropout: float) -> None:
        super().__init__()
        self.expand = nn.Conv2d(dim, channels, kernel_size=1)
        self.depthwise = nn.Conv2d(channels, channels, kernel_size=3, padding=1, groups=channels)
        self.pointwise = nn.Conv2d(channels, channels, kernel_size=1)
        self.contract = nn.Conv2d(channels, dim, kernel_size=1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        grid_size = math.isqrt(x.shape[1])
        grid = x.transpose(1, 2).unflatten(2, (grid_size, grid_size))  # [B, D, G, G]
        grid = nn.functional.hardswish(self.expand(grid))
        grid = nn.functional.hardswish(self.pointwise(self.depthwise(grid)))
        grid = self.contract(self.dropout(grid))
        return self.dropout(grid.flatten(2).transpose(1, 2))


class SeparableLocalViT(LocalViT):
    """`LocalViT` with `SeparableFeedForward` for CONV."""

    conv_class = SeparableFeedForward
