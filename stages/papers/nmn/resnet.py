"""ResNet-18, the baseline (He et al. 2016, in the authors' script's form for small images).

A 3x3 stem without pooling, four stages of two blocks, widths W to 8W with W = 64, stride 2 between stages:

    block(x) = ReLU(BN(conv(ReLU(BN(conv(x))))) + skip(x)),  skip = identity, or BN(conv 1x1) if shapes change

B batch, C channels, S image size, K classes.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

BLOCKS_PER_STAGE = (2, 2, 2, 2)


def check_image_size(image_size: int) -> None:
    """Check that three strides of 2 leave a map of at least one pixel.

    Raises:
        ValueError: `image_size` is not a positive multiple of 8.
    """
    if image_size < 8 or image_size % 8:
        raise ValueError(f"image_size is {image_size}; expected a positive multiple of 8")


def stage_shapes(width: int) -> list[tuple[int, int, int]]:
    """List the input channels, output channels and stride of every block, in order."""
    shapes, channels = [], width
    for stage, blocks in enumerate(BLOCKS_PER_STAGE):
        for block in range(blocks):
            shapes.append((channels, width * 2**stage, 2 if stage > 0 and block == 0 else 1))
            channels = width * 2**stage
    return shapes


class ResNetBlock(nn.Module):
    """[B, in_channels, H, W] -> [B, out_channels, H / stride, W / stride]."""

    def __init__(self, *, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(out_channels)
        self.second = nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(out_channels)
        self.skip = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.skip = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(hidden)) + self.skip(x))


class ResNet18(nn.Module):
    """Normalised images [B, C, S, S] -> logits [B, K]."""

    def __init__(self, *, image_size: int, in_channels: int, num_classes: int, width: int) -> None:
        super().__init__()
        check_image_size(image_size)
        self.stem = nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(
            *(ResNetBlock(in_channels=a, out_channels=b, stride=stride) for a, b, stride in stage_shapes(width))
        )
        self.head = nn.Linear(8 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.blocks(F.relu(self.stem_norm(self.stem(images))))
        return self.head(maps.mean(dim=(2, 3)))
