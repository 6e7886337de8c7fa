"""ResNet-18 with batch normalisations, sums and ReLUs fused where they follow each other."""

from __future__ import annotations

from torch import Tensor

from stages.ops.batch_norm_native import batch_norm_relu
from stages.papers.nmn.resnet import ResNet18, ResNetBlock


class FastResNetBlock(ResNetBlock):
    """The block with both normalisations fused with what follows them."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, in_channels, H, W] -> [B, out_channels, H / stride, W / stride]."""
        hidden = batch_norm_relu(self.first_norm, self.first(x))
        return batch_norm_relu(self.second_norm, self.second(hidden), self.skip(x))


class FastResNet18(ResNet18):
    """The network with its stem's normalisation and ReLU fused."""

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images [B, C, S, S] -> logits [B, K]."""
        maps = self.blocks(batch_norm_relu(self.stem_norm, self.stem(images)))
        return self.head(maps.mean(dim=(2, 3)))


FAST_LAYERS = {ResNetBlock: FastResNetBlock, ResNet18: FastResNet18}
