"""AetherResNet-18 with the scales that the guide prints: none in a convolution (5), equation 2 in the last layer (1).

The guide's scale (2) belongs to its dense layer; in a convolution of n channels it would start at n / log(1 + n), 15 to
82 here.
"""

from __future__ import annotations

from stages.ops.yat import YatLinear
from stages.papers.nmn.aether_resnet import AetherResNet18


class PrintedAetherResNet18(AetherResNet18):
    """`AetherResNet18` whose convolutions are equation 5 as printed and whose last layer is equation 1."""

    def __init__(
        self, *, image_size: int, in_channels: int, num_classes: int, width: int, features: int, epsilon: float
    ) -> None:
        super().__init__(
            image_size=image_size,
            in_channels=in_channels,
            num_classes=num_classes,
            width=width,
            features=features,
            scale=None,
            epsilon=epsilon,
        )
        self.head = YatLinear(features, num_classes, bias=False, scale="guide", epsilon=epsilon)
