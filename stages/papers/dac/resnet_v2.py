"""ResNet v2 for small images and its two conversions    (DAC paper, section 5; He et al. 2016, "Identity mappings").

    base            BN → ReLU → conv → BN → ReLU → conv → + input
    DAC             BN′ → DAC → BN′ → DAC → + input
    shared biases   BN′ → (ReLU with a bias for each input channel → conv), twice → + input (Table 3)

The last one is the baseline in another form: a BN's shift is the shared bias of the ReLU after it.  All end in
BN → ReLU before the pooling, for the reason given in `resnet_v1`.  B batch, C channels, S image size, K classes.
"""

from __future__ import annotations

from torch import Tensor, nn

from stages.papers.dac.layers import (
    Connect,
    SharedBiasConv2d,
    Shortcut,
    batch_norm,
    check_image_size,
    conv3x3,
    dac3x3,
    output_layer,
    relu3x3,
    residual_plan,
)


class BlockV2(nn.Module):
    """BN, then a connection, twice, and a shortcut without activations.  [B, C, S, S] -> [B, C', S', S']."""

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, *, connect: Connect, has_shift: bool = False
    ) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            batch_norm(in_channels, has_shift=has_shift),
            connect(in_channels, out_channels, stride),
            batch_norm(out_channels, has_shift=has_shift),
            connect(out_channels, out_channels, 1),
        )
        self.shortcut = Shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x) + self.shortcut(x)


def final_layers(channels: int, num_classes: int, *, has_shift: bool) -> nn.Sequential:
    """BN → ReLU → pooling → fully connected.  [B, C, S, S] -> logits [B, K]."""
    return nn.Sequential(batch_norm(channels, has_shift=has_shift), nn.ReLU(), output_layer(channels, num_classes))


class ResNetV2(nn.Module):
    """The baseline.  Normalised images [B, C, S, S] -> logits [B, K]."""

    def __init__(self, *, image_size: int, in_channels: int, num_classes: int, depth: int, width: int) -> None:
        super().__init__()
        check_image_size(image_size)
        self.stem = conv3x3(in_channels, width)
        plan = residual_plan(depth, width)
        self.blocks = nn.Sequential(*(BlockV2(*sizes, connect=relu3x3, has_shift=True) for sizes in plan))
        self.head = final_layers(4 * width, num_classes, has_shift=True)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)))


class DACResNetV2(nn.Module):
    """Unshared biases.  Normalised images [B, C, S, S] -> logits [B, K].

    `has_last_shift`: the BN before the last ReLU keeps its shift, that ReLU's only bias.
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
    ) -> None:
        super().__init__()
        check_image_size(image_size)
        self.stem = conv3x3(in_channels, width)
        self.blocks = nn.Sequential(*(BlockV2(*sizes, connect=dac3x3) for sizes in residual_plan(depth, width)))
        self.head = final_layers(4 * width, num_classes, has_shift=has_last_shift)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)))


class SharedBiasResNetV2(nn.Module):
    """Pre-activation with shared biases (Table 3).  Normalised images [B, C, S, S] -> logits [B, K]."""

    def __init__(self, *, image_size: int, in_channels: int, num_classes: int, depth: int, width: int) -> None:
        super().__init__()
        check_image_size(image_size)
        self.stem = conv3x3(in_channels, width)
        plan = residual_plan(depth, width)
        self.blocks = nn.Sequential(*(BlockV2(*sizes, connect=SharedBiasConv2d) for sizes in plan))
        self.head = final_layers(4 * width, num_classes, has_shift=True)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)))
