"""ViT with learned positions: a sensitivity arm, because the baseline doesn't see the order of patches.

Procedure 1 has none; Dosovitskiy et al. 2021 (eq. 1) add one learned vector per token after the embedding, drawn with
standard deviation 0.02 as in their code.  B batch, C channels, S image size, N tokens, D token dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stages.papers.ninformer.layers import PatchEmbedding
from stages.papers.ninformer.vit import ViT


class PositionedPatchEmbedding(PatchEmbedding):
    """Patch embedding plus a learned vector for each position.  [B, C, S, S] -> [B, N, D]."""

    def __init__(self, *, image_size: int, in_channels: int, dim: int, patch_size: int) -> None:
        super().__init__(image_size=image_size, in_channels=in_channels, dim=dim, patch_size=patch_size)
        self.positions = nn.Parameter(torch.empty(self.num_tokens, dim))
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + self.positions


class PositionedViT(ViT):
    """`ViT` whose patch embedding includes positions."""

    embedding_class = PositionedPatchEmbedding
