"""ResNet v1 for small images and its three conversions    (DAC paper, section 5; He et al. 2016).

    base            conv → BN → ReLU → conv → BN → + input → ReLU
    DAC             DAC → BN′ → DAC → BN′ → + input
    shared biases   the DAC network with a bias for each input channel instead of each pair (Table 3)
    MBA             the DAC network with K copies of each input channel instead (eq. 3)

In a converted network the shortcut carries sums before any activation.  A ReLU stays before the pooling, biased by the
shift of the BN before it: separate biases for each class would need as many activated maps as there are classes.  MBA
has its copies there, too, and the output layer reads all of them.  The stem doesn't activate the image.
B batch, C channels, S image size, K classes.
"""

from __future__ import annotations

from torch import Tensor, nn

from stages.ops.mba import MBA
from stages.papers.dac.layers import (
    Connect,
    SharedBiasConv2d,
    Shortcut,
    batch_norm,
    check_image_size,
    conv3x3,
    dac3x3,
    mba3x3,
    output_layer,
    residual_plan,
)


class BlockV1(nn.Module):
    """The baseline's block, activated after each sum.  [B, C, S, S] -> [B, C', S', S']."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            conv3x3(in_channels, out_channels, stride),
            batch_norm(out_channels, has_shift=True),
            nn.ReLU(),
            conv3x3(out_channels, out_channels),
            batch_norm(out_channels, has_shift=True),
        )
        self.shortcut = Shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        return (self.residual(x) + self.shortcut(x)).relu()


class ConvertedBlockV1(nn.Module):
    """A block whose connections activate their own inputs.  [B, C, S, S] -> [B, C', S', S']."""

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, *, connect: Connect, has_shift: bool = False
    ) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            connect(in_channels, out_channels, stride),
            batch_norm(out_channels, has_shift=False),
            connect(out_channels, out_channels, 1),
            batch_norm(out_channels, has_shift=has_shift),
        )
        self.shortcut = Shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x) + self.shortcut(x)


def converted_blocks(depth: int, width: int, *, connect: Connect, has_last_shift: bool) -> nn.Sequential:
    """All blocks; only the last BN may have a shift, since no biases follow it."""
    *plan, last = residual_plan(depth, width)
    blocks = [ConvertedBlockV1(*sizes, connect=connect) for sizes in plan]
    return nn.Sequential(*blocks, ConvertedBlockV1(*last, connect=connect, has_shift=has_last_shift))


class ResNetV1(nn.Module):
    """The baseline.  Normalised images [B, C, S, S] -> logits [B, K]."""

    def __init__(self, *, image_size: int, in_channels: int, num_classes: int, depth: int, width: int) -> None:
        super().__init__()
        check_image_size(image_size)
        self.stem = nn.Sequential(conv3x3(in_channels, width), batch_norm(width, has_shift=True), nn.ReLU())
        self.blocks = nn.Sequential(*(BlockV1(*sizes) for sizes in residual_plan(depth, width)))
        self.head = output_layer(4 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)))


class DACResNetV1(nn.Module):
    """Unshared biases.  Normalised images [B, C, S, S] -> logits [B, K].

    `has_last_shift`: the BN before the last ReLU keeps its shift, that ReLU's only bias.  `has_dac_stem`: the first
    layer activates the image, too, as section 6 suggests.
    """

    def __init__(
        self,
        *,
        image_size: int,
        in_channels: int,
        num_classes: int,
        depth: int,
        width: int,
        has_last_shift: bool = True,
        has_dac_stem: bool = False,
    ) -> None:
        super().__init__()
        check_image_size(image_size)
        stem = dac3x3(in_channels, width) if has_dac_stem else conv3x3(in_channels, width)
        self.stem = nn.Sequential(stem, batch_norm(width, has_shift=False))
        self.blocks = converted_blocks(depth, width, connect=dac3x3, has_last_shift=has_last_shift)
        self.head = nn.Sequential(nn.ReLU(), output_layer(4 * width, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)))


class SharedBiasResNetV1(nn.Module):
    """Pre-activation only (Table 3).  Normalised images [B, C, S, S] -> logits [B, K]."""

    def __init__(self, *, image_size: int, in_channels: int, num_classes: int, depth: int, width: int) -> None:
        super().__init__()
        check_image_size(image_size)
        self.stem = nn.Sequential(conv3x3(in_channels, width), batch_norm(width, has_shift=False))
        self.blocks = converted_blocks(depth, width, connect=SharedBiasConv2d, has_last_shift=True)
        self.head = nn.Sequential(nn.ReLU(), output_layer(4 * width, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)))


class MBAResNetV1(nn.Module):
    """Multi-bias activations with `copies` biases per channel.  Normalised images [B, C, S, S] -> logits [B, K]."""

    def __init__(
        self, *, image_size: int, in_channels: int, num_classes: int, depth: int, width: int, copies: int
    ) -> None:
        super().__init__()
        check_image_size(image_size)
        self.stem = nn.Sequential(conv3x3(in_channels, width), batch_norm(width, has_shift=False))
        self.blocks = converted_blocks(depth, width, connect=mba3x3(copies), has_last_shift=False)
        self.head = nn.Sequential(MBA(4 * width, copies), output_layer(copies * 4 * width, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)))
