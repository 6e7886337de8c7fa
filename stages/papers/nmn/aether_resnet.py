"""AetherResNet-18, the proposed image network (NMN architecture guide, section AetherResNet).

    block(x) = conv(Yat-conv(x)) + skip(x),  skip = identity, or conv 1x1 if shapes change

No normalisation, no activation, no bias.  The guide draws only the block; stem, widths, pooling, the linear map to 256
features and the Yat layer of the logits are those of the authors' public script.  B batch, C channels, S image size,
K classes.
"""

from __future__ import annotations

from torch import Tensor, nn

from stages.ops.yat import ScaleReading, YatConv2d, YatLinear
from stages.papers.nmn.resnet import check_image_size, stage_shapes


class AetherBlock(nn.Module):
    """[B, in_channels, H, W] -> [B, out_channels, H / stride, W / stride]."""

    def __init__(
        self, *, in_channels: int, out_channels: int, stride: int, scale: ScaleReading, epsilon: float
    ) -> None:
        super().__init__()
        self.yat = YatConv2d(
            in_channels, out_channels, 3, stride=stride, padding=1, bias=False, scale=scale, epsilon=epsilon
        )
        self.linear = nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.skip = nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.yat(x)) + self.skip(x)


class AetherResNet18(nn.Module):
    """Normalised images [B, C, S, S] -> logits [B, K], none negative, because the last Yat layer returns squares.

    `features` is the width before that layer; `scale` and `epsilon` are those of all Yat layers.
    """

    def __init__(
        self,
        *,
        image_size: int,
        in_channels: int,
        num_classes: int,
        width: int,
        features: int,
        scale: ScaleReading,
        epsilon: float,
    ) -> None:
        super().__init__()
        check_image_size(image_size)
        self.stem = nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False)
        self.blocks = nn.Sequential(
            *(
                AetherBlock(in_channels=a, out_channels=b, stride=stride, scale=scale, epsilon=epsilon)
                for a, b, stride in stage_shapes(width)
            )
        )
        self.features = nn.Linear(8 * width, features, bias=False)
        self.head = YatLinear(features, num_classes, bias=False, scale=scale, epsilon=epsilon)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.blocks(self.stem(images))
        return self.head(self.features(maps.mean(dim=(2, 3))))


class PrintedAetherResNet18(AetherResNet18):
    """`AetherResNet18` whose convolutions are equation 5 as printed, and whose last layer is equation 1.

    The guide's scale (2) belongs to its dense layer; in a convolution of n channels it would start at n / log(1 + n),
    15 to 82 here.
    """

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
