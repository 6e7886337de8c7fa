"""LocalViT with h-swish and squeeze-and-excitation, a variant of its authors (Li et al. 2021; Hu et al. 2018).

CONV of equation 7 gains, after the depthwise convolution's h-swish, a factor for each sample and channel:

    s = h-sigmoid(W₂ ReLU(W₁ mean(x) + b₁) + b₂),    mean over the grid, W₁: [C/4, C], W₂: [C, C/4]

B batch, C channels, G grid size.
"""

from __future__ import annotations

from torch import Tensor, nn

from stages.papers.ninformer.local_vit import LocalFeedForward, LocalViT

REDUCTION = 4  # LocalViT's authors


class SqueezeExcitation(nn.Module):
    """Multiply x by its s.  [B, C, G, G] -> [B, C, G, G]."""

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
    """`LocalViT` with `SqueezeExciteFeedForward` for CONV."""

    conv_class = SqueezeExciteFeedForward
